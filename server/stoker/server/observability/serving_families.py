"""TensorFlow Serving's metrics: its names, labels, buckets and units (microseconds), over the same figures as all others.

They are counted by model, not by version. What our figures do not tell apart has one value: `API` is Predict, `entrypoint` any, `runtime`
backend. Sources of names and buckets: TensorFlow Serving's `servables/tensorflow/util.cc` and `batching/batching_session.cc`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from stoker.server.observability.histogram import SERVING_LATENCY_BOUNDS_NS, SERVING_QUEUE_BOUNDS_NS, Histogram
from stoker.server.observability.recorder import FailureReason
from stoker.server.observability.series import ServerSeries, VersionSeries
from stoker.server.observability.statistics import VersionStatistics

_PREFIX = ":tensorflow:serving:"
#: The gRPC status that stands for each reason of failure.
_STATUS = {
    FailureReason.REJECTED: "UNAVAILABLE",
    FailureReason.CANCELED: "CANCELLED",
    FailureReason.BACKEND: "INTERNAL",
    FailureReason.OTHER: "INVALID_ARGUMENT",
}
_NS_PER_US = 1000
Labels = dict[str, str]


class ServingFamilies:
    """Collects the `:tensorflow:*` families at a scrape. Confined to: the event loop."""

    def __init__(self, series: ServerSeries) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """The families, each complete."""
        models: dict[str, list[VersionSeries]] = {}
        for (name, _), version in sorted(self._series.versions.items()):
            models.setdefault(name, []).append(version)
        statistics = {name: [version.statistics for version in versions] for name, versions in models.items()}
        yield _request_count(statistics)
        yield _histograms(
            f"{_PREFIX}request_latency",
            "Distribution of wall time (in microseconds) of requests that were answered",
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
        examples = Metric(f"{_PREFIX}request_example_count_total", "Rows of answered requests", "counter")
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
    """One histogram a model, over all its versions; `bounds` in nanoseconds."""
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
    """Times of the last loads."""
    latency = Metric(":tensorflow:cc:saved_model:load_latency", "Time (in microseconds) of the last load", "counter")
    for versions in models.values():
        for version in versions:
            if version.load_s is not None:
                latency.add_sample(latency.name, {"model_path": _path(version)}, round(version.load_s * 1e6))
    yield latency


def _path(version: VersionSeries) -> str:
    """What `model_path` says: model and version, because where they lie is the operator's business."""
    return f"{version.labels['model']}/{version.labels['version']}"
