"""The `nv_*` metrics: Triton's names, labels and units, so that dashboards and scrapers written for it go on working."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric

from stoker.backends.api.clock import Clock
from stoker.server.observability.host import HostFigures
from stoker.server.observability.latency_families import latency_families
from stoker.server.observability.metrics_settings import MetricsSettings
from stoker.server.observability.series import ServerSeries
from stoker.server.observability.statistics import VersionStatistics

# Name, help, value of one version. Durations are whole microseconds, as Triton counts them.
_COUNTERS: tuple[tuple[str, str, Callable[[VersionStatistics], int]], ...] = (
    ("nv_inference_request_success", "Inference requests that were answered, whatever their batch size", lambda s: s.success_count),
    ("nv_inference_count", "Inferences made: a request of batch size n counts n", lambda s: s.rows),
    (
        "nv_inference_exec_count",
        "Executions of the model; one execution may serve a batch of several requests",
        lambda s: s.execution_count,
    ),
    ("nv_inference_request_duration_us", "Time of answered requests from end to end, in microseconds", lambda s: s.success_ns // 1000),
    ("nv_inference_queue_duration_us", "Time answered requests waited in the queue, in microseconds", lambda s: s.queue_ns // 1000),
    ("nv_inference_compute_input_duration_us", "Time spent on preparing model inputs, in microseconds", lambda s: s.input_ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Time spent on executing the model, in microseconds", lambda s: s.infer_ns // 1000),
    ("nv_inference_compute_output_duration_us", "Time spent on extracting model outputs, in microseconds", lambda s: s.output_ns // 1000),
)
#: How the names of the times among them end.
_TIMES = "_duration_us"


class TritonFamilies:
    """Collects the `nv_*` families at a scrape. Confined to: the event loop."""

    def __init__(self, series: ServerSeries, host: HostFigures, settings: MetricsSettings, clock: Clock) -> None:
        self._series = series
        self._host = host
        self._settings = settings
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """The families, each complete."""
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
