"""The results of a run of the benchmarks: plain data, and its form as JSON."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Version of the JSON file; raised when a field changes its meaning or is removed.
SCHEMA = 2
#: Bound on the cores used by other processes, above which figures in wall-clock time are not trusted.
QUIET_CORES = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One measured window.

    Attributes:
        target: `stoker`, `echo-bytes`, `echo-protobuf`, `echo-asgi` or `onnxruntime`.
        model: The model's name.
        protocol: `grpc`, `http-binary`, `http-json`; `in-process` for raw onnxruntime.
        load: `closed` or `open`.
        concurrency: Requests in flight of a closed loop; 0 for an open one.
        offered_per_s: Requests due a second in an open loop; 0 for a closed one.
        load_factor: Open loop: the offered share of the measured capacity; 0 for a closed one.
        rows: Rows in a request (or in a batch of raw onnxruntime).
        repeat: The round, from 0: windows of one round and part were measured next to each other.
        requests, errors: Good responses of the window, and requests that failed or got no response in time.
        elapsed_s: Length of the window, seconds.
        requests_per_s, rows_per_s: Good responses.
        mean_ms, p50_ms, p95_ms, p99_ms, max_ms: Latency; of an open loop, from when a request was due.
        server_cpu_us: CPU time of the server's processes for each good response, microseconds.
        server_cpu_share: The same over the window's length, in cores.
        server_rss_mib: Resident memory at the end.
        client_cpu_share: CPU time of the generator over the window's length; near 1.0 the generator was the limit. 0 for raw onnxruntime,
            which has none.
        send_lag_p99_ms: Open loop: 99th percentile of the delay of sends, milliseconds.
        foreign_cores: Cores that other processes used in the window.
    """

    target: str
    model: str
    protocol: str
    load: str
    concurrency: int = 0
    offered_per_s: float = 0.0
    load_factor: float = 0.0
    rows: int = 1
    repeat: int = 0
    requests: int = 0
    errors: int = 0
    elapsed_s: float = 0.0
    requests_per_s: float = 0.0
    rows_per_s: float = 0.0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    server_cpu_us: float = 0.0
    server_cpu_share: float = 0.0
    server_rss_mib: float = 0.0
    client_cpu_share: float = 0.0
    send_lag_p99_ms: float = 0.0
    foreign_cores: float = 0.0

    @property
    def cell(self) -> tuple[str, str, str, str, int, float, int]:
        """The measured configuration, the same for all repeats."""
        return (self.target, self.model, self.protocol, self.load, self.concurrency, self.load_factor, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A floor and its measurement.

    Attributes:
        floor: The target.
        measured: The measured value, in `unit`.
        limit: The bound; `at_least` states which side is good.
        evidence: The figures behind the value.
        is_floor: False: only a comparison, neither passed nor missed.
        foreign_cores: Cores kept busy by others in the windows behind it, where that would spoil it; their median.
    """

    floor: str
    measured: float
    limit: float
    unit: str
    at_least: bool
    evidence: str
    is_floor: bool = True
    foreign_cores: float = 0.0

    @classmethod
    def of_rounds(cls, floor: str, figures: Sequence[float], limit: float, unit: str, *, at_least: bool = False) -> "Verdict":
        """The median of `figures` (at least one) compared with `limit`; the figures are the evidence."""
        evidence = ", ".join(f"{each:.3g}" for each in figures)
        return cls(floor=floor, measured=statistics.median(figures), limit=limit, unit=unit, at_least=at_least, evidence=evidence)

    @property
    def is_clear(self) -> bool:
        """Whether the machine was quiet enough for a valid figure."""
        return self.foreign_cores <= QUIET_CORES

    @property
    def passed(self) -> bool:
        """Whether `measured` is on the good side of `limit`."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass(slots=True)
class Run:
    """The results of a run."""

    machine: dict[str, str]
    settings: dict[str, Any]
    windows: list[Window] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def to_json(self) -> str:
        """The run as one JSON document."""
        verdicts = [dataclasses.asdict(each) | {"passed": each.passed, "is_clear": each.is_clear} for each in self.verdicts]
        document = {
            "schema": SCHEMA,
            "machine": self.machine,
            "settings": self.settings,
            "verdicts": verdicts,
            "windows": [dataclasses.asdict(each) for each in self.windows],
        }
        return json.dumps(document, indent=1) + "\n"


_COUNTS = ("requests", "errors")
_KEY = {"target", "model", "protocol", "load", "concurrency", "load_factor", "rows", "repeat"}


def medians(windows: Iterable[Window]) -> list[Window]:
    """One window for each cell, in order of first appearance: counts are sums, all other values medians over the repeats."""
    cells: dict[tuple[object, ...], list[Window]] = {}
    for window in windows:
        cells.setdefault(window.cell, []).append(window)
    return [_merge(repeats) for repeats in cells.values()]


def _merge(repeats: list[Window]) -> Window:
    changes: dict[str, Any] = {"repeat": 0}
    for each in dataclasses.fields(Window):
        if each.name in _COUNTS:
            changes[each.name] = sum(getattr(window, each.name) for window in repeats)
        elif each.name not in _KEY:
            changes[each.name] = statistics.median(getattr(window, each.name) for window in repeats)
    return dataclasses.replace(repeats[0], **changes)
