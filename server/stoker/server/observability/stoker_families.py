"""The `stoker_*` metrics: what Triton does not show, or not by default, in Prometheus' base units."""

import platform
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from stoker.server.core.state import VersionState
from stoker.server.observability.histogram import Histogram
from stoker.server.observability.series import ServerSeries, VersionSeries
from stoker.server.observability.statistics import VersionStatistics

# Name, help, histogram of one version, how many of its units make one of the metric's unit.
_HISTOGRAMS: tuple[tuple[str, str, Callable[[VersionStatistics], Histogram], int], ...] = (
    ("stoker_request_duration_seconds", "Time of answered requests from end to end.", lambda s: s.request_histogram, 1_000_000_000),
    ("stoker_queue_duration_seconds", "Time answered requests waited in the queue.", lambda s: s.queue_histogram, 1_000_000_000),
    (
        "stoker_compute_duration_seconds",
        "Time of the batch that computed an answered request: inputs, model and outputs.",
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
        """The families, each complete."""
        versions = self._series.in_order()
        for name, text, histogram, divisor in _HISTOGRAMS:
            yield _histogram_family(name, text, [(version, histogram(version.statistics)) for version in versions], divisor)
        yield from _version_gauges(versions)
        yield from self._server_families()

    def _server_families(self) -> Iterator[Metric]:
        series = self._series
        failures = Metric("stoker_model_load_failures_total", "Loads and reloads of a model that failed.", "counter")
        for model, count in sorted(series.load_failures.items()):
            failures.add_sample("stoker_model_load_failures_total", {"model": model}, count)
        yield failures
        dropped = Metric("stoker_log_lines_dropped_total", "Log lines that could not be written and were dropped.", "counter")
        dropped.add_sample("stoker_log_lines_dropped_total", {}, series.log_lines_dropped())
        yield dropped
        evictions = Metric(
            "stoker_budget_evictions_total", "Slow requests and answers that were ended because the budget of bytes was full.", "counter"
        )
        evictions.add_sample("stoker_budget_evictions_total", {}, series.evictions())
        yield evictions
        goaways = Metric("stoker_grpc_goaways_total", "gRPC connections that were sent GOAWAY, by reason.", "counter")
        for reason, count in series.goaways.items():
            goaways.add_sample("stoker_grpc_goaways_total", {"reason": reason.value}, count)
        yield goaways
        for name, text, value in (
            ("stoker_requests_in_flight", "Requests taken in and not yet answered.", series.requests_in_flight()),
            ("stoker_bytes_in_flight", "Bytes that requests in flight hold of the admission budget.", series.bytes_in_flight()),
            ("stoker_ready", "Whether the server is ready, as its health routes say.", int(series.is_ready())),
        ):
            gauge = Metric(name, text, "gauge")
            gauge.add_sample(name, {}, value)
            yield gauge
        build = Metric("stoker_build_info", "Always 1; the labels say what runs.", "gauge")
        build.add_sample("stoker_build_info", {"version": series.release, "python": platform.python_version()}, 1)
        yield build


def _version_gauges(versions: Sequence[VersionSeries]) -> Iterator[Metric]:
    depth = Metric("stoker_queue_depth", "Requests that wait in the queue now.", "gauge")
    load = Metric("stoker_model_load_duration_seconds", "Time of the last good load.", "gauge")
    states = Metric("stoker_model_state", "1 for the state a version is in, 0 for every other state.", "gauge")
    stale = Metric("stoker_model_reload_failed", "1 for a version that serves although its last reload failed.", "gauge")
    ejected = Metric(
        "stoker_instances_resting", "Instances that are passed over now because their last batch failed as a whole; probed again.", "gauge"
    )
    for version in versions:
        ejected.add_sample("stoker_instances_resting", version.labels, version.statistics.instances_ejected)
        stale.add_sample("stoker_model_reload_failed", version.labels, int(version.is_reload_failed))
        depth.add_sample("stoker_queue_depth", version.labels, version.statistics.queue_depth)
        if version.load_s is not None:
            load.add_sample("stoker_model_load_duration_seconds", version.labels, version.load_s)
        if version.state is not None:
            for state in VersionState:
                states.add_sample("stoker_model_state", {**version.labels, "state": state.value}, int(state is version.state))
    yield from (depth, ejected, load, states, stale)


def _histogram_family(name: str, text: str, rows: Sequence[tuple[VersionSeries, Histogram]], divisor: int) -> Metric:
    family = Metric(name, text, "histogram")
    for version, histogram in rows:
        count = 0
        for bound, count in histogram.cumulative():
            family.add_sample(f"{name}_bucket", {**version.labels, "le": _bound_text(bound, divisor)}, count)
        family.add_sample(f"{name}_sum", version.labels, histogram.total / divisor)
        family.add_sample(f"{name}_count", version.labels, count)
    return family


def _bound_text(bound: int | None, divisor: int) -> str:
    """A bucket's `le`, written as a float (`1.0`), as Prometheus 3 normalises it: another spelling would be another series."""
    return "+Inf" if bound is None else repr(bound / divisor)
