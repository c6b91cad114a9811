"""Throughput that Graphcore published for a C600 (PopRT's report): what the cost model is held against.

ResNet-50 v1 in images a second, with synthetic data (nothing crosses the host link) and with real data (overlapped IO); BERT-base at
sequence length 256 in sequences a second. `OOM` is a batch that did not fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from benchmarks.ipu_networks import Precision, bert_base, resnet50

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One cell of the tables.

    Attributes:
        network: `resnet50` or `bert`.
        variant: `real` or `synth` data; `erf` or `gelu`: GELU in five nodes or in one.
        precision, batch: Of the cell.
        rows_per_s: Published; None where it did not fit.
        is_anomaly: Falls out of its row.
    """

    network: str
    variant: str
    precision: Precision
    batch: int
    rows_per_s: int | None
    is_anomaly: bool = field(default=False)

    @property
    def label(self) -> str:
        return f"{self.network} {self.variant} {self.precision.value} b{self.batch}"

    def graph(self) -> ir.Model:
        """The network of the cell, as converted."""
        if self.network == "resnet50":
            return resnet50(self.batch, self.precision)
        return bert_base(self.batch, self.precision, is_gelu_fused=self.variant == "gelu")


def published_rows() -> Iterator[PublishedRow]:
    """All cells, table by table."""
    for network, table, batches in (("resnet50", _RESNET, _RESNET_BATCHES), ("bert", _BERT, _BERT_BATCHES)):
        for (variant, precision), cells in table.items():
            for batch, cell in zip(batches, cells, strict=False):
                yield PublishedRow(
                    network=network,
                    variant=variant,
                    precision=precision,
                    batch=batch,
                    rows_per_s=cell if isinstance(cell, int) else None,
                    is_anomaly=(network, variant, precision, batch) in _ANOMALIES,
                )
