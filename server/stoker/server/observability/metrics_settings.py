"""Which of Triton's optional metrics are shown. Imports nothing of the server, so that flags are read without it."""

from dataclasses import dataclass

#: Triton's; its allowed error of each, 0.05 to 0.001, is replaced by the width of `latency_summaries`' buckets.
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Triton's `--metrics-config`.

    Attributes:
        counter_latencies: Show times as sums (`nv_inference_..._duration_us`).
        histogram_latencies: Show the time to the first response of decoupled models as a histogram.
        summary_latencies: Count times by quantile, too (`nv_inference_..._summary_us`); costs some microseconds a batch.
        summary_quantiles: Which quantiles those are, each from 0 to 1.
    """

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: tuple[float, ...] = DEFAULT_QUANTILES
