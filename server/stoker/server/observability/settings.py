"""Settings of metrics and of the event loop's monitor. Imports nothing of the server, so that flags are read without it."""

from dataclasses import dataclass
from typing import Final

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


#: Between two beats, at most, seconds.
LONGEST_BEAT_S: Final = 0.25
#: The shortest silence that differs from an ordinary turn of the loop, seconds.
LEAST_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopWatchSettings:
    """What counts as a blocked loop.

    Attributes:
        block_s: Seconds without a beat after which stacks are written and a block is counted; 0: neither.
        abort_s: Seconds without a beat after which the process is ended by SIGABRT; 0: never.
    """

    block_s: float = 1.0
    abort_s: float = 0.0

    @property
    def beat_s(self) -> float:
        """Between two beats."""
        return min([LONGEST_BEAT_S, *(each / 4 for each in (self.block_s, self.abort_s) if each)])
