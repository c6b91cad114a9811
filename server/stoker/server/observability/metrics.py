"""`Metrics` records all events of the server, and serves statistics calls and scrapes.

prometheus-client's `CollectorRegistry` is the registry, so that further collectors may be registered (`Metrics.registry`). Its
per-observation objects, which take locks, are not used: the collectors here read plain integers at a scrape.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from stoker.backends.api.clock import Clock
from stoker.server.core.model_key import name_of
from stoker.server.core.state import ModelStatistics, VersionState
from stoker.server.observability.families import ServingFamilies, StokerFamilies, TritonFamilies
from stoker.server.observability.history import History
from stoker.server.observability.recorder import GoawayReason
from stoker.server.observability.series import CacheFigures, HostFigures, ServerSeries, VersionSeries, version_labels, write_exposition
from stoker.server.observability.settings import MetricsSettings
from stoker.server.observability.statistics import LatencySummaries, VersionStatistics

#: Bound on the model names among failed loads, because a client chooses the name in a load and each is a series; further ones are counted
#: together.
MAX_FAILING_MODELS = 1000
FURTHER_MODELS = "(further models)"


class Metrics:
    """The `ServerRecorder` of the server: counts events, and returns them as statistics and metrics. Confined to: the event loop.

    Attributes:
        registry: The registry for further collectors; `render` shows them after the server's own.
    """

    def __init__(
        self, clock: Clock, *, settings: MetricsSettings | None = None, release: str | None = None, proc: Path = Path("/proc")
    ) -> None:
        """Starts with all counts at zero.

        Args:
            clock: Gives the wall-clock time of the last inference.
            settings: The enabled optional metrics of Triton; None: Triton's defaults.
            release: The server's version for `stoker_build_info`; None: that of the installed distribution.
            proc: The folder for the host's figures (`/proc`).
        """
        self._clock = clock
        self._settings = settings or MetricsSettings()
        self._series = ServerSeries(release if release is not None else _installed_release())
        self._serving = ServingFamilies(self._series)
        self.registry = CollectorRegistry()
        self.registry.register(TritonFamilies(self._series, HostFigures(proc), self._settings, clock))
        self.registry.register(StokerFamilies(self._series))
        self.registry.register(_ProcessFamilies(proc))
        PlatformCollector(registry=self.registry)

    def watch(
        self,
        *,
        namespaces: tuple[str, ...] | None = None,
        requests_in_flight: Callable[[], int] | None = None,
        bytes_in_flight: Callable[[], int] | None = None,
        evictions: Callable[[], int] | None = None,
        log_lines_dropped: Callable[[], int] | None = None,
        is_ready: Callable[[], bool] | None = None,
        cache_figures: Callable[[], CacheFigures | None] | None = None,
    ) -> None:
        """Sets the namespaces of models, and the functions that return values of other parts; called once these exist.

        Values that are not passed stay unchanged.
        """
        series = self._series
        series.namespaces = namespaces or series.namespaces
        series.requests_in_flight = requests_in_flight or series.requests_in_flight
        series.bytes_in_flight = bytes_in_flight or series.bytes_in_flight
        series.evictions = evictions or series.evictions
        series.log_lines_dropped = log_lines_dropped or series.log_lines_dropped
        series.is_ready = is_ready or series.is_ready
        series.cache_figures = cache_figures or series.cache_figures

    def version(self, name: str, version: int, tags: Mapping[str, str]) -> VersionStatistics:
        entry = self._entry(name, version)
        entry.labels = version_labels(name, version, tags, self._series.namespaces)
        return entry.statistics

    def state(self, name: str, version: int, state: VersionState) -> None:
        self._entry(name, version).state = state

    def loaded(self, name: str, version: int, *, seconds: float) -> None:
        self._entry(name, version).load_s = seconds

    def warmed(self, name: str, version: int, *, duration_ns: int) -> None:
        self._entry(name, version).warmups.observe(duration_ns)

    def load_failed(self, name: str, version: int | None) -> None:
        failures = self._series.load_failures
        if name not in failures and len(failures) >= MAX_FAILING_MODELS:
            name = FURTHER_MODELS
        failures[name] = failures.get(name, 0) + 1

    def note_goaway(self, reason: GoawayReason) -> None:
        """Counts a gRPC connection that was sent GOAWAY."""
        self._series.goaways[reason] += 1

    def reload_failed(self, name: str, version: int, is_failed: bool) -> None:
        self._entry(name, version).is_reload_failed = is_failed

    def forget(self, name: str, version: int) -> None:
        self._series.versions.pop((name, version), None)
        if not any(model == name for model, _ in self._series.versions):
            self._series.load_failures.pop(name, None)

    def statistics(self, name: str, version: int) -> ModelStatistics:
        """The counts of a version; all zero before its first request."""
        entry = self._series.versions.get((name, version))
        return entry.statistics.snapshot(name_of(name), version) if entry else ModelStatistics(name=name_of(name), version=version)

    def history(self) -> History:
        """A new history of these counts; the caller takes its samples."""
        return History(self._series, self._clock)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format 0.0.4."""
        return write_exposition(self.registry.collect())

    def render_serving(self) -> bytes:
        """The metrics under TensorFlow Serving's names, in the same format."""
        return write_exposition(self._serving.collect())

    def _entry(self, name: str, version: int) -> VersionSeries:
        entry = self._series.versions.get((name, version))
        if entry is None:
            summaries = LatencySummaries(self._clock) if self._settings.summary_latencies else None
            entry = VersionSeries(version_labels(name, version, {}, self._series.namespaces), VersionStatistics(self._clock, summaries))
            self._series.versions[name, version] = entry
        return entry


class _ProcessFamilies:
    """prometheus-client's `process_*` metrics, without its error where a limit of the process is `unlimited`."""

    def __init__(self, proc: Path) -> None:
        self._collector = ProcessCollector(proc=str(proc), registry=None)

    def collect(self) -> Iterator[Metric]:
        try:
            families = list(self._collector.collect())
        except (OSError, ValueError):
            return
        yield from families


def _installed_release() -> str:
    try:
        return metadata.version("stoker")
    except metadata.PackageNotFoundError:
        return "unknown"
