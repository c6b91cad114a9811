"""Triton's optional families of times: summaries over the last minute, and the time to the first response."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from stoker.server.observability.latency_summaries import LatencySummaries, RollingQuantiles
from stoker.server.observability.metrics_settings import MetricsSettings
from stoker.server.observability.series import VersionSeries
from stoker.server.observability.statistics import VersionStatistics

_NS_PER_US: Final = 1000
_NS_PER_MS: Final = 1_000_000
# Name within `nv_inference_..._summary_us`, help, quantiles of a version, sum of its times in nanoseconds.
_SUMMARIES: tuple[tuple[str, str, Callable[[LatencySummaries], RollingQuantiles], Callable[[VersionStatistics], int]], ...] = (
    ("request", "Time of answered requests from end to end, in microseconds", lambda s: s.request, lambda s: s.success_ns),
    ("queue", "Time answered requests waited in the queue, in microseconds", lambda s: s.queue, lambda s: s.queue_ns),
    ("compute_input", "Time spent on preparing model inputs, in microseconds", lambda s: s.compute_input, lambda s: s.input_ns),
    ("compute_infer", "Time spent on executing the model, in microseconds", lambda s: s.compute_infer, lambda s: s.infer_ns),
    ("compute_output", "Time spent on extracting model outputs, in microseconds", lambda s: s.compute_output, lambda s: s.output_ns),
)


def latency_families(versions: Sequence[VersionSeries], settings: MetricsSettings, now_ns: int) -> Iterator[Metric]:
    """The families that `settings` ask for, each complete."""
    if settings.summary_latencies:
        yield from _summaries(versions, settings.summary_quantiles, now_ns)
    if settings.histogram_latencies:
        yield _first_responses(versions)


def _summaries(versions: Sequence[VersionSeries], ranks: Sequence[float], now_ns: int) -> Iterator[Metric]:
    for kind, text, quantiles, total_ns in _SUMMARIES:
        name = f"nv_inference_{kind}_summary_us"
        family = Metric(name, text, "summary")
        for version in versions:
            statistics = version.statistics
            if statistics.summaries is None:
                continue
            for rank, value_ns in zip(ranks, quantiles(statistics.summaries).quantiles_ns(ranks, now_ns), strict=True):
                value = float("nan") if value_ns is None else value_ns // _NS_PER_US
                family.add_sample(name, {**version.labels, "quantile": f"{rank:g}"}, value)
            family.add_sample(f"{name}_sum", version.labels, total_ns(statistics) // _NS_PER_US)
            family.add_sample(f"{name}_count", version.labels, statistics.success_count)
        yield family


def _first_responses(versions: Sequence[VersionSeries]) -> Metric:
    """Of decoupled models alone, as in Triton: a response of any other is all of its answer."""
    name = "nv_inference_first_response_histogram_ms"
    family = Metric(name, "Time from a request to its first response, in milliseconds", "histogram")
    for version in versions:
        times = version.statistics.responses.first_response
        if not times.count:
            continue
        for bound_ns, count in times.cumulative():
            le = "+Inf" if bound_ns is None else str(bound_ns // _NS_PER_MS)
            family.add_sample(f"{name}_bucket", {**version.labels, "le": le}, count)
        family.add_sample(f"{name}_sum", version.labels, times.total // _NS_PER_MS)
        family.add_sample(f"{name}_count", version.labels, times.count)
    return family
