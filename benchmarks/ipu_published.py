"""Published figures of a C600, which the cost model is compared with. There are three groups of rows:

* *fitted*: PopRT's report. ResNet-50 v1 in images a second, with synthetic data (nothing crosses the host link) and with real data
  (overlapped IO); BERT-base at sequence length 256 in sequences a second. `OOM` is a batch that did not fit.
* *development* and *test*: rows of other sources, see `ipu_held_out`. The constants may be fitted to the first; the second are only ever
  compared.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from benchmarks.ipu_networks import Precision, bert_base, resnet50
from stoker.compiler.options import CompilerOptions

OOM = "OOM"
_RESNET_BATCHES = (1, 2, 4, 8, 16, 32, 64, 90, 96)
_BERT_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_RESNET: dict[tuple[str, Precision], tuple[int | str, ...]] = {
    ("real", Precision.FP32): (1759, 2316, 2864, 3321, 3756, OOM),
    ("real", Precision.FP16): (3529, 5284, 7030, 9307, 11393, 13593, 15249, 16470, OOM),
    ("real", Precision.FP8_STAR): (3997, 6314, 8749, 12476, 15554, 18705, 21525, 23500, 22295),
    ("synth", Precision.FP32): (1796, 2356, 2957, 3377, 3903, OOM),
    ("synth", Precision.FP16): (3653, 5466, 7438, 9805, 11825, 14240, 16084, 17105, 16790),
    ("synth", Precision.FP8): (4125, 5670, 8589, 11390, 13814, 16657, 12989, OOM),
    ("synth", Precision.FP8_STAR): (4126, 6499, 9334, 13313, 16334, 19667, 22886, 24962, 23695),
}
_BERT: dict[tuple[str, Precision], tuple[int | str, ...]] = {
    ("erf", Precision.FP32): (432, 525, OOM),
    ("erf", Precision.FP16): (664, 844, 1068, 1208, 488, OOM),
    ("erf", Precision.FP8): (727, 968, 1239, 1487, 521, 513, OOM),
    ("gelu", Precision.FP16): (766, 1012, 1352, 1578, 1657, OOM),
    ("gelu", Precision.FP8): (857, 1202, 1660, 2100, 2122, 1987, 2540),
}
#: Cells that fall out of their own row: the vendor's plan changed there under memory pressure. They are shown, and not aimed at.
_ANOMALIES = {
    ("bert", "erf", Precision.FP16, 16),
    ("bert", "erf", Precision.FP8, 16),
    ("bert", "erf", Precision.FP8, 32),
    ("resnet50", "synth", Precision.FP8, 64),
    ("resnet50", "synth", Precision.FP8, 90),
}
#: As ByteMLPerf ran ResNet-50 on a C600 with real data.
REAL_DATA = CompilerOptions(num_io_tiles=64, stream_buffering_depth=2, batches_per_step=128)
_PLAIN = CompilerOptions()


class Group(enum.Enum):
    """The use of a row."""

    FITTED = "fitted"
    DEVELOPMENT = "development"
    TEST = "test"
    MEMORY = "memory only"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published figure.

    Attributes:
        network, variant: For the label: `real` or `synth` data; `erf` or `gelu`: GELU in five nodes or in one; or the source.
        precision, batch: Of the row.
        rows_per_s: Published; None where it did not fit, and for rows of group MEMORY.
        group: The use of the row.
        options: The compiler options that were published with the figure.
        build: Returns the network, as converted.
        is_synthetic: Whether nothing crosses the host link.
        is_latency: Whether one client waited for each result: a call's latency sets the figure, not its period.
        is_anomaly: Falls out of its table: shown, and not aimed at.
        note: What is assumed, or why the figure cannot be compared.
    """

    network: str
    variant: str
    precision: Precision
    batch: int
    rows_per_s: float | None
    group: Group
    options: CompilerOptions
    build: Callable[[], ir.Model]
    is_synthetic: bool = field(default=False)
    is_latency: bool = field(default=False)
    is_anomaly: bool = field(default=False)
    note: str = field(default="")

    @property
    def label(self) -> str:
        return f"{self.network} {self.variant} {self.precision.value} b{self.batch}"

    @property
    def is_known_to_fit(self) -> bool:
        """Whether a card ran this configuration."""
        return self.rows_per_s is not None or self.group is Group.MEMORY


def fitted_rows() -> Iterator[PublishedRow]:
    """The cells of PopRT's report, table by table."""
    for network, table, batches in (("resnet50", _RESNET, _RESNET_BATCHES), ("bert", _BERT, _BERT_BATCHES)):
        for (variant, precision), cells in table.items():
            for batch, cell in zip(batches, cells, strict=False):
                yield PublishedRow(
                    network=network,
                    variant=variant,
                    precision=precision,
                    batch=batch,
                    rows_per_s=cell if isinstance(cell, int) else None,
                    group=Group.FITTED,
                    options=REAL_DATA if variant == "real" else _PLAIN,
                    build=_builder(network, variant, precision, batch),
                    is_synthetic=variant == "synth",
                    is_anomaly=(network, variant, precision, batch) in _ANOMALIES,
                )


def _builder(network: str, variant: str, precision: Precision, batch: int) -> Callable[[], ir.Model]:
    if network == "resnet50":
        return lambda: resnet50(batch, precision)
    return lambda: bert_base(batch, precision, is_gelu_fused=variant == "gelu")
