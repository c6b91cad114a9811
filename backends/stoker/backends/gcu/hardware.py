"""The GCU cards that are simulated, and their published figures.

Sources: [P] Enflame's product page and launch material of the CloudBlazer i20; [A] the article on Adlik and the i20; [H] the
TopsInference headers and samples as found in public code; [X] by arithmetic from these. The figures of the other cards have their sources
with each figure. The S60 is left out: its product manual states memory (48 GB at 672 GB/s) and data types, and no peak rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GcuHardware:
    """One card.

    Attributes:
        name: The vendor's name.
        clusters: Number of groups of cores. A run uses one or more of them [H].
        hbm_bytes: Device memory [A].
        hbm_bytes_per_s: Its bandwidth, shared by all clusters [A].
        fp32_flops_per_s, fp16_flops_per_s: Peak rate of all clusters together [P].
        host_link_bytes_per_s: PCIe 4.0 x16, one way [P].
        max_dims: Dimensions that a tensor may have [H].
        max_streams: Streams that may exist at a time [H].
        is_fitted: Whether the cost model was fitted to published times of this card. For other cards it has the constants of the i20.
        sources: Of a card other than the i20: where each figure is published, by attribute.
    """

    name: str
    clusters: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    fp32_flops_per_s: float
    fp16_flops_per_s: float
    host_link_bytes_per_s: float
    max_dims: int = 8
    max_streams: int = 1000
    is_fitted: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name; of a card without a fit, it says so."""
        return self.name if self.is_fitted else f"{self.name} (times unfitted)"


I20 = GcuHardware(
    name="i20",
    clusters=6,
    hbm_bytes=16 << 30,
    hbm_bytes_per_s=819e9,
    fp32_flops_per_s=32e12,
    fp16_flops_per_s=128e12,
    host_link_bytes_per_s=32e9,
    is_fitted=True,
)

_ASSUMED_CLUSTERS = "not published; assumed: four, as in Enflame's first chip (Hot Chips 33, 2021, AI Compute Chip from Enflame)"
#: A secondary source: no page of the vendor could be read.
_COMPARED = "a comparison table of AI chips of 2023 (public notebook, section on Enflame's DTU)"

I10 = GcuHardware(
    name="i10",
    clusters=4,
    hbm_bytes=16 << 30,
    hbm_bytes_per_s=512e9,
    fp32_flops_per_s=17.6e12,
    fp16_flops_per_s=70.4e12,
    host_link_bytes_per_s=32e9,
    sources={
        "clusters": _ASSUMED_CLUSTERS,
        "hbm_bytes": f"{_COMPARED}: 16 GB HBM2",
        "hbm_bytes_per_s": f"{_COMPARED}: 512 GB/s",
        "fp32_flops_per_s": "launch report, December 2020, https://news.qq.com/rain/a/20201221A0AHHL00: 17.6 TFLOPS",
        "fp16_flops_per_s": "launch report, December 2020, https://news.qq.com/rain/a/20201221A0AHHL00: 70.4 TFLOPS",
        "host_link_bytes_per_s": "launch report, December 2020, https://news.qq.com/rain/a/20201221A0AHHL00: PCIe 4.0, x16",
    },
)

T20 = GcuHardware(
    name="T20",
    clusters=4,
    hbm_bytes=32 << 30,
    hbm_bytes_per_s=1.6e12,
    fp32_flops_per_s=32e12,
    fp16_flops_per_s=128e12,
    host_link_bytes_per_s=32e9,
    sources={
        "clusters": _ASSUMED_CLUSTERS,
        "hbm_bytes": f"{_COMPARED}: 32 GB HBM2E",
        "hbm_bytes_per_s": f"{_COMPARED}: 1.6 TB/s",
        "fp32_flops_per_s": f"{_COMPARED}: 32 TFLOPS; the launch report https://www.eefocus.com/article/498969.html says 33.6",
        "fp16_flops_per_s": f"{_COMPARED}: 128 TFLOPS",
        "host_link_bytes_per_s": "the vendor's prospectus (Shanghai 688801, 2026): PCIe 4.0 x16 before the third generation",
    },
)

#: The cards by name, lower case.
CARDS: Mapping[str, GcuHardware] = {each.name.lower(): each for each in (I20, I10, T20)}
CARD_NAMES = tuple(each.name for each in CARDS.values())
