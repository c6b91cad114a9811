"""The table behind the metrics, the host's figures, and the Prometheus text format.

The collectors read the table at a scrape; only `Metrics` writes it.

prometheus-client's writer would append `_total` to every counter and print `3.0` for three. Programs that read Triton's metrics match
whole lines such as `nv_inference_count{model="m",version="1"} 3`, so the collectors' names are kept, labels are sorted by name, and whole
numbers are printed without a fraction.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.metrics_core import Metric

from stoker.server.core.model_key import name_of, repository_of
from stoker.server.core.state import VersionState
from stoker.server.observability.recorder import GoawayReason
from stoker.server.observability.statistics import SERVING_LATENCY_BOUNDS_NS, Histogram, VersionStatistics


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of the host's memory; memory that the kernel can reclaim at once does not count as used."""

    total_bytes: int
    used_bytes: int


class HostFigures:
    """Reads /proc. Confined to: the event loop (a read takes tens of microseconds and never waits for a disk)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._stat = proc / "stat"
        self._meminfo = proc / "meminfo"
        self._ticks = self._read_ticks()
        self._utilization = 0.0

    def cpu_utilization(self) -> float | None:
        """Busy share of all cores since the last call (at first: since construction), 0 to 1; None if unreadable."""
        now = self._read_ticks()
        if now is None or self._ticks is None:
            return None
        busy, total = now[0] - self._ticks[0], now[1] - self._ticks[1]
        if total > 0:
            # The kernel may correct iowait downwards, which would yield more busy than total time.
            self._utilization = min(max(busy / total, 0.0), 1.0)
            self._ticks = now
        return self._utilization

    def memory(self) -> HostMemory | None:
        """Memory of the host; None if unreadable."""
        try:
            lines = self._meminfo.read_text().splitlines()
            kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("MemTotal:", "MemAvailable:"))}
            total, available = kib["MemTotal"], kib["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None
        return HostMemory(total_bytes=total * 1024, used_bytes=(total - available) * 1024)

    def _read_ticks(self) -> tuple[int, int] | None:
        """Busy and total ticks of all cores since boot."""
        try:
            with self._stat.open() as stat:
                fields = stat.readline().split()
            # user nice system idle iowait irq softirq steal; user and nice already include the guest columns after them.
            ticks = [int(field) for field in fields[1:9]]
            total = sum(ticks)
            return total - ticks[3] - ticks[4], total
        except (OSError, ValueError, IndexError):
            return None


Labels = dict[str, str]

_NOT_A_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


def model_labels(key: str, namespaces: Sequence[str]) -> dict[str, str]:
    """The labels of a model's series: its name and, as in Triton, its namespace if there are `namespaces`."""
    index = repository_of(key)
    named = {"model": name_of(key)}
    return named if index is None else {**named, "namespace": namespaces[index]}


def version_labels(key: str, version: int, tags: Mapping[str, str], namespaces: Sequence[str] = ()) -> dict[str, str]:
    """The labels of a version's series: those of the model, version, and each metric tag with a leading underscore.

    Characters that are invalid in label names become underscores, so that no tag breaks the scrape.
    """
    labels = {"_" + _NOT_A_LABEL_CHARACTER.sub("_", key): value for key, value in tags.items()}
    return {**labels, **model_labels(key, namespaces), "version": str(version)}


@dataclass(slots=True)
class VersionSeries:
    """The metrics of one version.

    Attributes:
        labels: The labels of all its series.
        statistics: Its counts.
        state: Its state; None until one was reported.
        load_s: Duration of its last successful load, seconds; None until there was one.
        is_reload_failed: Whether the version serves although its last reload failed.
        warmups: Durations of its warm-ups, nanoseconds.
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


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """The local response cache: its memory in bytes, its entries, and the entries evicted so far."""

    size_bytes: int
    entries: int
    evicted: int


def _no_cache() -> CacheFigures | None:
    return None


@dataclass(slots=True)
class ServerSeries:
    """All values of a scrape. Confined to: the event loop.

    Attributes:
        release: The server's own version.
        namespaces: The namespaces of models, by the index of the repository; empty: there are none.
        versions: By the model's key and version.
        load_failures: Failed loads and reloads, by the model's key.
        goaways: gRPC connections that were sent GOAWAY, by reason.
        requests_in_flight, bytes_in_flight, evictions, log_lines_dropped, is_ready, cache_figures: Functions that are called at every
            scrape.
    """

    release: str
    namespaces: tuple[str, ...] = ()
    versions: dict[tuple[str, int], VersionSeries] = field(default_factory=dict)
    load_failures: dict[str, int] = field(default_factory=dict)
    goaways: dict[GoawayReason, int] = field(default_factory=lambda: dict.fromkeys(GoawayReason, 0))
    requests_in_flight: Callable[[], int] = _none_yet
    bytes_in_flight: Callable[[], int] = _none_yet
    evictions: Callable[[], int] = _none_yet
    log_lines_dropped: Callable[[], int] = _none_yet
    is_ready: Callable[[], bool] = _not_ready
    cache_figures: Callable[[], CacheFigures | None] = _no_cache

    def in_order(self) -> list[VersionSeries]:
        """The versions by name and number, so that two scrapes compare line by line."""
        return [series for _, series in sorted(self.versions.items())]


# Above this value, floats do not represent every whole number: printed digits would suggest a false precision.
_EXACT_WHOLE = 2.0**53


def write_exposition(families: Iterable[Metric]) -> bytes:
    """The families as one UTF-8 document; a family without samples is left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        # A counter has the name of its samples, with or without `_total`; prometheus-client's own families leave the suffix out.
        name = family.samples[0].name if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped_help(family.documentation)}")
        lines.append(f"# TYPE {name} {_TEXT_TYPES.get(family.type, family.type)}")
        lines.extend(f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples)
    # A lone surrogate (a name that was not UTF-8 on disk) must not make the whole scrape fail.
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


# Types of OpenMetrics that the text format does not have.
_TEXT_TYPES = {"info": "gauge", "stateset": "gauge", "unknown": "untyped", "gaugehistogram": "histogram"}


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # also converts a bool
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < _EXACT_WHOLE else repr(value)
