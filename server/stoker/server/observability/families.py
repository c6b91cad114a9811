"""The metric families: Triton's `nv_*`, TensorFlow Serving's, `stoker_*`, and those of backends.

TensorFlow Serving's families are counted by model, not by version. Labels without a meaning in Stoker have one value: `API` is Predict,
`entrypoint` any, `runtime` backend. Sources of names and buckets: TensorFlow Serving's `servables/tensorflow/util.cc` and
`batching/batching_session.cc`.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.metrics_core import Metric

from stoker.backends.api.backend import Figure
from stoker.backends.api.clock import Clock
from stoker.server.core.build_kind import BUILD
from stoker.server.core.model_key import name_of
from stoker.server.core.state import VersionState
from stoker.server.observability.recorder import FailureReason
from stoker.server.observability.series import HostFigures, ServerSeries, VersionSeries, model_labels
from stoker.server.observability.settings import MetricsSettings
from stoker.server.observability.statistics import (
    SERVING_LATENCY_BOUNDS_NS,
    SERVING_QUEUE_BOUNDS_NS,
    CacheStatistics,
    Histogram,
    LatencySummaries,
    RollingQuantiles,
    VersionStatistics,
)

_NS_PER_US: Final = 1000
_NS_PER_MS: Final = 1_000_000
# Name within `nv_inference_..._summary_us`, help, quantiles of a version, sum of its times in nanoseconds.
_SUMMARIES: tuple[tuple[str, str, Callable[[LatencySummaries], RollingQuantiles], Callable[[VersionStatistics], int]], ...] = (
    ("request", "Time of completed requests from end to end, in microseconds", lambda s: s.request, lambda s: s.success_ns),
    ("queue", "Time completed requests waited in the queue, in microseconds", lambda s: s.queue, lambda s: s.queue_ns),
    ("compute_input", "Time spent on preparing model inputs, in microseconds", lambda s: s.compute_input, lambda s: s.input_ns),
    ("compute_infer", "Time spent on executing the model, in microseconds", lambda s: s.compute_infer, lambda s: s.infer_ns),
    ("compute_output", "Time spent on extracting model outputs, in microseconds", lambda s: s.compute_output, lambda s: s.output_ns),
)


def latency_families(versions: Sequence[VersionSeries], settings: MetricsSettings, now_ns: int) -> Iterator[Metric]:
    """The latency families that `settings` enable, with all samples."""
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
            if statistics.summaries is None or (statistics.is_cached and kind == "request"):
                continue  # Triton has no summary of whole requests for a model with a response cache
            for rank, value_ns in zip(ranks, quantiles(statistics.summaries).quantiles_ns(ranks, now_ns), strict=True):
                value = float("nan") if value_ns is None else value_ns // _NS_PER_US
                family.add_sample(name, {**version.labels, "quantile": f"{rank:g}"}, value)
            family.add_sample(f"{name}_sum", version.labels, total_ns(statistics) // _NS_PER_US)
            count = statistics.success_count
            if statistics.cache is not None and kind.startswith("compute"):
                count -= statistics.cache.hit_count
            family.add_sample(f"{name}_count", version.labels, count)
        yield family


_CacheValue = Callable[[CacheStatistics], int]
# Name, help and value of one version. Durations are whole microseconds, as in Triton.
_CACHE_COUNTERS: tuple[tuple[str, str, _CacheValue], ...] = (
    ("nv_cache_num_hits_per_model", "Requests that were completed by the response cache", lambda c: c.hit_count),
    ("nv_cache_num_misses_per_model", "Requests that ran because the response cache had no response", lambda c: c.miss_count),
    ("nv_cache_hit_duration_per_model", "Time of lookups that found a response, in microseconds", lambda c: c.hit_ns // _NS_PER_US),
    (
        "nv_cache_miss_duration_per_model",
        "Time of lookups that found no response and of the insertions that followed, in microseconds",
        lambda c: c.miss_ns // _NS_PER_US,
    ),
)
# Name, help, quantiles, sum and count of one version.
_CACHE_SUMMARIES: tuple[tuple[str, str, Callable[[CacheStatistics], RollingQuantiles | None], _CacheValue, _CacheValue], ...] = (
    ("nv_cache_hit_summary_per_model", "Time of lookups that found a response, in microseconds", lambda c: c.hits, lambda c: c.hit_ns,
     lambda c: c.hit_count),
    ("nv_cache_miss_summary_per_model", "Time of lookups that found no response and of the insertions that followed, in microseconds",
     lambda c: c.misses, lambda c: c.miss_ns, lambda c: c.miss_count),
)  # fmt: skip


def cache_families(versions: Sequence[VersionSeries], settings: MetricsSettings, now_ns: int) -> Iterator[Metric]:
    """The families of the response cache, with the samples of the versions that have had one."""
    caches = [(version.labels, version.statistics.cache) for version in versions if version.statistics.cache is not None]
    for name, text, value in _CACHE_COUNTERS:
        if not settings.counter_latencies and "_duration_" in name:
            continue
        family = Metric(name, text, "counter")
        for labels, cache in caches:
            family.add_sample(name, labels, value(cache))
        yield family
    for name, text, quantiles, total_ns, count in _CACHE_SUMMARIES:
        family = Metric(name, text, "summary")
        for labels, cache in caches:
            times = quantiles(cache)
            if times is None:
                continue
            for rank, value_ns in zip(settings.summary_quantiles, times.quantiles_ns(settings.summary_quantiles, now_ns), strict=True):
                shown = float("nan") if value_ns is None else value_ns // _NS_PER_US
                family.add_sample(name, {**labels, "quantile": f"{rank:g}"}, shown)
            family.add_sample(f"{name}_sum", labels, total_ns(cache) // _NS_PER_US)
            family.add_sample(f"{name}_count", labels, count(cache))
        yield family


def _first_responses(versions: Sequence[VersionSeries]) -> Metric:
    """Only for decoupled models, as in Triton: any other model has one response for each request."""
    name = "nv_inference_first_response_histogram_ms"
    family = Metric(name, "Time from a request to its first response, in milliseconds", "histogram")
    for version in versions:
        times = version.statistics.responses.first_response
        if not times.count:
            continue
        for bound_ns, count in times.cumulative():
            le = "+Inf" if bound_ns is None else f"{bound_ns / _NS_PER_MS:g}"
            family.add_sample(f"{name}_bucket", {**version.labels, "le": le}, count)
        family.add_sample(f"{name}_sum", version.labels, times.total // _NS_PER_MS)
        family.add_sample(f"{name}_count", version.labels, times.count)
    return family


# Name, help and value of one version. Durations are whole microseconds, as in Triton.
_COUNTERS: tuple[tuple[str, str, Callable[[VersionStatistics], int]], ...] = (
    ("nv_inference_request_success", "Inference requests that were completed, whatever their batch size", lambda s: s.success_count),
    ("nv_inference_count", "Inferences made: a request of batch size n counts n", lambda s: s.rows),
    (
        "nv_inference_exec_count",
        "Executions of the model; one execution may serve a batch of several requests",
        lambda s: s.execution_count,
    ),
    ("nv_inference_request_duration_us", "Time of completed requests from end to end, in microseconds", lambda s: s.success_ns // 1000),
    ("nv_inference_queue_duration_us", "Time completed requests waited in the queue, in microseconds", lambda s: s.queue_ns // 1000),
    ("nv_inference_compute_input_duration_us", "Time spent on preparing model inputs, in microseconds", lambda s: s.input_ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Time spent on executing the model, in microseconds", lambda s: s.infer_ns // 1000),
    ("nv_inference_compute_output_duration_us", "Time spent on extracting model outputs, in microseconds", lambda s: s.output_ns // 1000),
)
#: The suffix of the duration families' names.
_TIMES = "_duration_us"


class TritonFamilies:
    """Collects the `nv_*` families at a scrape. Confined to: the event loop."""

    def __init__(self, series: ServerSeries, host: HostFigures, settings: MetricsSettings, clock: Clock) -> None:
        self._series = series
        self._host = host
        self._settings = settings
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """The families, each with all samples."""
        versions = self._series.in_order()
        for name, text, value in _COUNTERS:
            if name.endswith(_TIMES) and not self._settings.counter_latencies:
                continue
            family = Metric(name, text, "counter")
            for version in versions:
                family.add_sample(name, version.labels, value(version.statistics))
            yield family

        name = "nv_inference_request_failure"
        family = Metric(name, "Inference requests that failed, by reason", "counter")
        for version in versions:
            for reason, count in version.statistics.failure_counts.items():
                family.add_sample(name, {**version.labels, "reason": reason.value}, count)
        yield family

        name = "nv_inference_pending_request_count"
        family = Metric(name, "Requests that wait for execution now", "gauge")
        for version in versions:
            family.add_sample(name, version.labels, version.statistics.queue_depth)
        yield family

        name = "nv_model_load_duration_secs"
        family = Metric(name, "Time of the last load of the model, in seconds", "gauge")
        for version in versions:
            if version.load_s is not None:
                family.add_sample(name, version.labels, version.load_s)
        yield family

        yield from latency_families(versions, self._settings, self._clock.now_ns())
        yield from cache_families(versions, self._settings, self._clock.now_ns())
        yield from self._host_families()

    def _host_families(self) -> Iterator[Metric]:
        utilization = self._host.cpu_utilization()
        if utilization is not None:
            yield _gauge("nv_cpu_utilization", "Share of the host's processors in use since the last scrape, 0 to 1", utilization)
        memory = self._host.memory()
        if memory is not None:
            yield _gauge("nv_cpu_memory_total_bytes", "Memory of the host, in bytes", memory.total_bytes)
            yield _gauge("nv_cpu_memory_used_bytes", "Memory of the host in use, in bytes", memory.used_bytes)


def _gauge(name: str, text: str, value: float) -> Metric:
    family = Metric(name, text, "gauge")
    family.add_sample(name, {}, value)
    return family


_PREFIX = ":tensorflow:serving:"
#: The gRPC status of each reason of failure.
_STATUS = {
    FailureReason.REJECTED: "UNAVAILABLE",
    FailureReason.CANCELED: "CANCELLED",
    FailureReason.BACKEND: "INTERNAL",
    FailureReason.OTHER: "INVALID_ARGUMENT",
}
Labels = dict[str, str]


class ServingFamilies:
    """Collects the `:tensorflow:*` families at a scrape. Confined to: the event loop."""

    def __init__(self, series: ServerSeries) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """The families, each with all samples."""
        models: dict[str, list[VersionSeries]] = {}
        for (name, _), version in sorted(self._series.versions.items()):
            models.setdefault(name_of(name), []).append(version)
        statistics = {name: [version.statistics for version in versions] for name, versions in models.items()}
        yield _request_count(statistics)
        yield _histograms(
            f"{_PREFIX}request_latency",
            "Distribution of wall time (in microseconds) of requests that were completed",
            SERVING_LATENCY_BOUNDS_NS,
            {name: [each.request_histogram for each in found] for name, found in statistics.items()},
            lambda name: {"model_name": name, "API": "Predict", "entrypoint": "any", "status": "OK"},
        )
        yield _histograms(
            f"{_PREFIX}runtime_latency",
            "Distribution of wall time (in microseconds) of the batch that computed a request",
            SERVING_LATENCY_BOUNDS_NS,
            {name: [each.compute_histogram for each in found] for name, found in statistics.items()},
            lambda name: {"model_name": name, "API": "Predict", "runtime": "backend"},
        )
        yield _histograms(
            f"{_PREFIX}batching_session:queuing_latency",
            "Distribution of wall time (in microseconds) that requests waited in the queue of a model",
            SERVING_QUEUE_BOUNDS_NS,
            {name: [each.queue_histogram for each in found] for name, found in statistics.items()},
            lambda name: {"thread_pool_name": name},
        )
        runs = Metric(f"{_PREFIX}batching_session:wrapped_run_count", "Executions of all models", "counter")
        runs.add_sample(runs.name, {}, sum(each.execution_count for found in statistics.values() for each in found))
        yield runs
        examples = Metric(f"{_PREFIX}request_example_count_total", "Rows of completed requests", "counter")
        for name, found in statistics.items():
            examples.add_sample(f"{_PREFIX}request_example_count_total", {"model": name}, sum(each.rows for each in found))
        yield examples
        yield from _loads(models)
        warmed = [each for found in models.values() for each in found if each.warmups.count]
        yield _histograms(
            f"{_PREFIX}model_warmup_latency",
            "Distribution of wall time (in microseconds) for warming up the model",
            SERVING_LATENCY_BOUNDS_NS,
            {_path(each): [each.warmups] for each in warmed},
            lambda path: {"model_path": path, "status": "OK"},
        )


def _request_count(statistics: Mapping[str, Sequence[VersionStatistics]]) -> Metric:
    family = Metric(f"{_PREFIX}request_count", "Requests by status", "counter")
    for name, found in statistics.items():
        counts = {"OK": sum(each.success_count for each in found)}
        for reason, status in _STATUS.items():
            if failed := sum(each.failure_counts[reason] for each in found):
                counts[status] = failed
        for status, count in counts.items():
            family.add_sample(family.name, {"model_name": name, "status": status}, count)
    return family


def _histograms(
    name: str, text: str, bounds: Sequence[int], models: Mapping[str, Sequence[Histogram]], labels: Callable[[str], Labels]
) -> Metric:
    """One histogram for each model, over all its versions; `bounds` in nanoseconds."""
    family = Metric(name, text, "histogram")
    for model, histograms in models.items():
        own = labels(model)
        counts = [dict(histogram.cumulative(bounds)) for histogram in histograms]
        for bound in (*bounds, None):
            le = "+Inf" if bound is None else f"{bound / _NS_PER_US:g}"
            family.add_sample(f"{name}_bucket", {**own, "le": le}, sum(each[bound] for each in counts))
        family.add_sample(f"{name}_sum", own, sum(histogram.total for histogram in histograms) / _NS_PER_US)
        family.add_sample(f"{name}_count", own, sum(histogram.count for histogram in histograms))
    return family


def _loads(models: Mapping[str, Sequence[VersionSeries]]) -> Iterator[Metric]:
    """Durations of the last loads."""
    latency = Metric(":tensorflow:cc:saved_model:load_latency", "Time (in microseconds) of the last load", "counter")
    for versions in models.values():
        for version in versions:
            if version.load_s is not None:
                latency.add_sample(latency.name, {"model_path": _path(version)}, round(version.load_s * 1e6))
    yield latency


def _path(version: VersionSeries) -> str:
    """The value of `model_path`: namespace, model and version, because the paths of files are not disclosed."""
    return "/".join(version.labels[name] for name in ("namespace", "model", "version") if name in version.labels)


# Name, help, histogram of one version, number of its units in one of the metric's unit.
_HISTOGRAMS: tuple[tuple[str, str, Callable[[VersionStatistics], Histogram], int], ...] = (
    ("stoker_request_duration_seconds", "Time of completed requests from end to end.", lambda s: s.request_histogram, 1_000_000_000),
    ("stoker_queue_duration_seconds", "Time completed requests waited in the queue.", lambda s: s.queue_histogram, 1_000_000_000),
    (
        "stoker_compute_duration_seconds",
        "Time of the batch that computed a completed request: inputs, model and outputs.",
        lambda s: s.compute_histogram,
        1_000_000_000,
    ),
    ("stoker_batch_rows", "Rows of each execution of the model.", lambda s: s.rows_histogram, 1),
)


class StokerFamilies:
    """Collects the `stoker_*` families at a scrape. Confined to: the event loop."""

    def __init__(self, series: ServerSeries) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """The families, each with all samples."""
        versions = self._series.in_order()
        for name, text, histogram, divisor in _HISTOGRAMS:
            yield _histogram_family(name, text, [(version, histogram(version.statistics)) for version in versions], divisor)
        yield from _version_gauges(versions)
        yield from self._server_families()

    def _server_families(self) -> Iterator[Metric]:
        series = self._series
        failures = Metric("stoker_model_load_failures_total", "Loads and reloads of a model that failed.", "counter")
        for model, count in sorted(series.load_failures.items()):
            failures.add_sample("stoker_model_load_failures_total", model_labels(model, series.namespaces), count)
        yield failures
        dropped = Metric("stoker_log_lines_dropped_total", "Log lines that could not be written and were dropped.", "counter")
        dropped.add_sample("stoker_log_lines_dropped_total", {}, series.log_lines_dropped())
        yield dropped
        evictions = Metric(
            "stoker_budget_evictions_total", "Slow requests and responses that were ended because the byte budget was full.", "counter"
        )
        evictions.add_sample("stoker_budget_evictions_total", {}, series.evictions())
        yield evictions
        goaways = Metric("stoker_grpc_goaways_total", "gRPC connections that were sent GOAWAY, by reason.", "counter")
        for reason, count in series.goaways.items():
            goaways.add_sample("stoker_grpc_goaways_total", {"reason": reason.value}, count)
        yield goaways
        for name, text, value in (
            ("stoker_requests_in_flight", "Requests accepted and not yet completed.", series.requests_in_flight()),
            ("stoker_bytes_in_flight", "Bytes that requests in flight hold of the admission budget.", series.bytes_in_flight()),
            ("stoker_ready", "Whether the server is ready, as its health routes say.", int(series.is_ready())),
        ):
            gauge = Metric(name, text, "gauge")
            gauge.add_sample(name, {}, value)
            yield gauge
        elements = Metric("stoker_padded_elements_total", "Elements of padded inputs: of the requests, and in all.", "counter")
        for version in series.in_order():
            statistics = version.statistics
            if statistics.computed_elements:
                for kind, count in (("useful", statistics.useful_elements), ("computed", statistics.computed_elements)):
                    elements.add_sample("stoker_padded_elements_total", {**version.labels, "kind": kind}, count)
        yield elements
        if (cache := series.cache_figures()) is not None:
            held = Metric("stoker_cache_bytes", "Memory of the local response cache, in bytes.", "gauge")
            held.add_sample("stoker_cache_bytes", {}, cache.size_bytes)
            entries = Metric("stoker_cache_entries", "Responses in the local response cache.", "gauge")
            entries.add_sample("stoker_cache_entries", {}, cache.entries)
            evicted = Metric("stoker_cache_evictions_total", "Responses that were evicted from the local response cache.", "counter")
            evicted.add_sample("stoker_cache_evictions_total", {}, cache.evicted)
            yield from (held, entries, evicted)
        build = Metric("stoker_build_info", "Always 1; the labels say what runs.", "gauge")
        build.add_sample("stoker_build_info", {"version": series.release, "python": platform.python_version(), "build": BUILD}, 1)
        yield build


def _version_gauges(versions: Sequence[VersionSeries]) -> Iterator[Metric]:
    depth = Metric("stoker_queue_depth", "Requests that wait in the queue now.", "gauge")
    load = Metric("stoker_model_load_duration_seconds", "Time of the last good load.", "gauge")
    states = Metric("stoker_model_state", "1 for the state a version is in, 0 for every other state.", "gauge")
    stale = Metric("stoker_model_reload_failed", "1 for a version that serves although its last reload failed.", "gauge")
    ejected = Metric("stoker_instances_ejected", "Instances that are ejected now, because their last batch failed as a whole.", "gauge")
    deprecated = Metric("stoker_instances_resting", "Deprecated name of stoker_instances_ejected; removed after 0.2.", "gauge")
    deaths = Metric("stoker_worker_deaths", "Worker processes that ended while they were needed.", "counter")
    for version in versions:
        deaths.add_sample("stoker_worker_deaths_total", version.labels, version.statistics.worker_deaths)
        ejected.add_sample("stoker_instances_ejected", version.labels, version.statistics.instances_ejected)
        deprecated.add_sample("stoker_instances_resting", version.labels, version.statistics.instances_ejected)
        stale.add_sample("stoker_model_reload_failed", version.labels, int(version.is_reload_failed))
        depth.add_sample("stoker_queue_depth", version.labels, version.statistics.queue_depth)
        if version.load_s is not None:
            load.add_sample("stoker_model_load_duration_seconds", version.labels, version.load_s)
        if version.state is not None:
            for state in VersionState:
                states.add_sample("stoker_model_state", {**version.labels, "state": state.value}, int(state is version.state))
    yield from (depth, ejected, deprecated, load, states, stale, deaths)


def _histogram_family(name: str, text: str, rows: Sequence[tuple[VersionSeries, Histogram]], divisor: int) -> Metric:
    family = Metric(name, text, "histogram")
    for version, histogram in rows:
        count = 0
        for bound, count in histogram.cumulative():
            family.add_sample(f"{name}_bucket", {**version.labels, "le": _bound_text(bound, divisor)}, count)
        family.add_sample(f"{name}_sum", version.labels, histogram.total / divisor)
        family.add_sample(f"{name}_count", version.labels, count)
    return family


def _bound_text(bound: float | None, divisor: int) -> str:
    """A bucket's `le` as a float (`1.0`), as Prometheus 3 normalises it: another spelling would be another series."""
    return "+Inf" if bound is None else repr(bound / divisor)


class FigureSource(Protocol):
    """Has metrics of its own: a backend in use, or the worker processes."""

    def figures(self) -> Iterable[Figure]:
        """See `Backend.figures`."""


class BackendFamilies:
    """Collects the metrics of every backend in use at a scrape. Confined to: the event loop."""

    def __init__(self, backends: Callable[[], Iterable[FigureSource]]) -> None:
        """`backends` returns the backends in use, and further sources."""
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        """The families, each with all samples, in the order in which their names first occur."""
        families: dict[str, Metric] = {}
        for backend in self._backends():
            for figure in backend.figures():
                family = families.setdefault(figure.name, Metric(figure.name, figure.help, figure.kind))
                if family.type != figure.kind:
                    continue  # two models define the metric with different kinds: the first one is shown
                if figure.kind == "histogram":
                    _add_histogram(family, figure)
                else:
                    family.add_sample(figure.name, dict(figure.labels), figure.value)
        yield from families.values()


def _add_histogram(family: Metric, figure: Figure) -> None:
    for bound, count in figure.buckets:
        text = _bound_text(None if math.isinf(bound) else bound, 1)
        family.add_sample(f"{figure.name}_bucket", {**figure.labels, "le": text}, count)
    family.add_sample(f"{figure.name}_sum", dict(figure.labels), figure.value)
    family.add_sample(f"{figure.name}_count", dict(figure.labels), figure.buckets[-1][1])
