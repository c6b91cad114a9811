"""The table behind the metrics: which model versions there are, what is known of each, and the figures of the server as a whole.

The collectors read it on a scrape; `Metrics` is its only writer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.server.core.goaway import GoawayReason
from stoker.server.core.state import VersionState
from stoker.server.observability.histogram import SERVING_LATENCY_BOUNDS_NS, Histogram
from stoker.server.observability.statistics import VersionStatistics

Labels = dict[str, str]

_NOT_A_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


def version_labels(name: str, version: int, tags: Mapping[str, str]) -> dict[str, str]:
    """The labels of a version's series: model, version, and each metric tag with an underscore in front.

    Characters that a label name cannot have become underscores, so that no tag breaks the scrape.
    """
    labels = {"_" + _NOT_A_LABEL_CHARACTER.sub("_", key): value for key, value in tags.items()}
    return {**labels, "model": name, "version": str(version)}


@dataclass(slots=True)
class VersionSeries:
    """What the metrics know of one version.

    Attributes:
        labels: Of all its series.
        statistics: Its counts.
        state: None until a state was reported.
        load_s: Seconds of its last good load; None until there was one.
        is_reload_failed: Whether it serves although its last reload failed.
        warmups: Times of its warm-ups, in nanoseconds.
    """

    labels: Labels
    statistics: VersionStatistics
    state: VersionState | None = None
    load_s: float | None = None
    is_reload_failed: bool = False
    warmups: Histogram = field(default_factory=lambda: Histogram(SERVING_LATENCY_BOUNDS_NS))


def _none_yet() -> int:
    return 0


def _not_ready() -> bool:
    return False


@dataclass(slots=True)
class ServerSeries:
    """Everything that a scrape shows. Confined to: the event loop.

    Attributes:
        release: The server's own version.
        versions: By model name and version.
        load_failures: Failed loads and reloads, by model name.
        goaways: gRPC connections that were sent GOAWAY, by reason.
        requests_in_flight, bytes_in_flight, evictions, log_lines_dropped, is_ready: Read at every scrape.
    """

    release: str
    versions: dict[tuple[str, int], VersionSeries] = field(default_factory=dict)
    load_failures: dict[str, int] = field(default_factory=dict)
    goaways: dict[GoawayReason, int] = field(default_factory=lambda: dict.fromkeys(GoawayReason, 0))
    requests_in_flight: Callable[[], int] = _none_yet
    bytes_in_flight: Callable[[], int] = _none_yet
    evictions: Callable[[], int] = _none_yet
    log_lines_dropped: Callable[[], int] = _none_yet
    is_ready: Callable[[], bool] = _not_ready

    def in_order(self) -> list[VersionSeries]:
        """The versions by name and number, so that two scrapes compare line by line."""
        return [series for _, series in sorted(self.versions.items())]
