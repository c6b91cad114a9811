"""The GCU card that is simulated, and its published figures.

Sources: [P] Enflame's product page and launch material of the CloudBlazer i20; [A] the article on Adlik and the i20; [H] the
TopsInference headers and samples as found in public code; [X] by arithmetic from these.
"""

from dataclasses import dataclass


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


I20 = GcuHardware(
    name="i20",
    clusters=6,
    hbm_bytes=16 << 30,
    hbm_bytes_per_s=819e9,
    fp32_flops_per_s=32e12,
    fp16_flops_per_s=128e12,
    host_link_bytes_per_s=32e9,
)
