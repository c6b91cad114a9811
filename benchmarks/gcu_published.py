"""Published figures of the i20 (the article on Adlik and TopsInference, fp32): what the cost model is held against.

Latency at batch 1 through Adlik's server; at a large batch, latency through the server and throughput by the vendor's own tool, `topsexec`.
Every served throughput equals batch / latency: one request at a time on one instance.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNetwork:
    """One row of the tables.

    Attributes:
        name: As `gcu_networks.gcu_network` takes it.
        mebibytes: Size of the ONNX file.
        single_ms: Latency served at batch 1.
        batch: The large batch.
        served_ms: Latency served at it.
        raw_per_s: Samples a second by `topsexec` at it.
        is_single_full: Whether the latency at batch 1 is that of the full static batch: BERT's is 94 % of that at batch 120. Adlik's
            runtime computes `max_batch_size` samples whatever it was given.
    """

    name: str
    mebibytes: float
    single_ms: float
    batch: int
    served_ms: float
    raw_per_s: float
    is_single_full: bool = False

    @property
    def raw_ms(self) -> float:
        """Latency of the large batch by `topsexec`."""
        return 1e3 * self.batch / self.raw_per_s


PUBLISHED = (
    PublishedNetwork(name="resnet50", mebibytes=97.4, single_ms=4.86533, batch=120, served_ms=101.704, raw_per_s=1162.58),
    PublishedNetwork(name="pruned resnet50", mebibytes=39.8, single_ms=3.3735, batch=120, served_ms=68.6933, raw_per_s=1659.88),
    PublishedNetwork(name="yolov5s", mebibytes=27.6, single_ms=10.3394, batch=30, served_ms=134.559, raw_per_s=514.543),
    PublishedNetwork(name="bert", mebibytes=415.2, single_ms=1154.33, batch=120, served_ms=1233.91, raw_per_s=86.0, is_single_full=True),
)
