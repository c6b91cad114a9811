"""The figures of a window of samples. Percentiles are by nearest rank: each is an observed latency."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.cli.bench.levels import Level
from stoker.cli.bench.loops import Samples
from stoker.cli.bench.server_times import ServerTimes

_NS_PER_S = 1_000_000_000
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Window:
    """A time interval, nanoseconds of the load's clock; the end is exclusive."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.begin_ns) / _NS_PER_S


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a window.

    Attributes:
        requests, errors: Requests that ended in the window, successful and failed.
        requests_per_s: Successful requests a second.
        mean_us: Mean latency, microseconds.
        latency_us: Latency by percentile, microseconds.
        send_us, receive_us: Means of the client's own times, microseconds; see `Trip`.
        lag_us: 99th percentile of the delay with which an open loop sent its requests, microseconds.
    """

    seconds: float
    requests: int
    errors: int
    requests_per_s: float
    mean_us: float
    latency_us: dict[int, float]
    send_us: float
    receive_us: float
    lag_us: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one level.

    Attributes:
        level: The load.
        figures: The figures of all windows that count, taken together.
        rows: Rows of one request.
        is_stable: Whether these windows agreed.
        client_cpu: CPU time of this process over wall time, in cores; near 1 the client is the bottleneck.
        server: The server's statistics; None if its protocol has none.
        failures: Number of errors of the window by text, the most frequent first.
        ended: Why the level ended: `stable`, `trials`, `requests` or `errors`.
    """

    level: Level
    figures: Figures
    rows: int
    is_stable: bool
    client_cpu: float
    server: ServerTimes | None
    failures: dict[str, int]
    ended: str

    @property
    def rows_per_s(self) -> float:
        """Throughput in rows, which perf_analyzer calls inferences."""
        return self.figures.requests_per_s * self.rows

    def facts(self) -> dict[str, Any]:
        """All fields as JSON data."""
        figures = asdict(self.figures)
        figures["latency_us"] = {f"p{percent}": value for percent, value in self.figures.latency_us.items()}
        return {
            "concurrency": self.level.concurrency,
            "request_rate": self.level.rate_per_s,
            **figures,
            "rows_per_request": self.rows,
            "rows_per_s": self.rows_per_s,
            "is_stable": self.is_stable,
            "ended": self.ended,
            "client_cpu": self.client_cpu,
            "server": None if self.server is None else asdict(self.server),
            "failures": self.failures,
        }


def measure(samples: Samples, window: Window) -> Figures:
    """The figures of the requests that ended within `window`."""
    begin, end = bisect_left(samples.ended_ns, window.begin_ns), bisect_left(samples.ended_ns, window.end_ns)
    errors = bisect_left(samples.failed_ns, window.end_ns) - bisect_left(samples.failed_ns, window.begin_ns)
    ordered = sorted(samples.latency_ns[begin:end])
    count = end - begin
    return Figures(
        seconds=window.seconds,
        requests=count,
        errors=errors,
        requests_per_s=count / window.seconds,
        mean_us=_mean_us(ordered),
        latency_us={percent: percentile(ordered, percent) / 1000 for percent in PERCENTILES},
        send_us=_mean_us(samples.send_ns[begin:end]),
        receive_us=_mean_us(samples.receive_ns[begin:end]),
        lag_us=percentile(sorted(samples.lag_ns[begin:end]), 99) / 1000,
    )


def failures(samples: Samples, window: Window) -> dict[str, int]:
    """The number of failed requests within `window` by text, the most frequent first."""
    begin, end = bisect_left(samples.failed_ns, window.begin_ns), bisect_left(samples.failed_ns, window.end_ns)
    return dict(Counter(samples.failed_texts[begin:end]).most_common())


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The smallest of `ordered` that at least `percent` % of the values do not exceed; 0 if there are none."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else 0


def agree(figures: Sequence[Figures], within: float) -> bool:
    """Whether throughput and mean latency of every window differ by at most this share (0.1: 10 %) from their means over all of them."""
    if any(each.requests == 0 for each in figures):
        return False
    for values in ([each.requests_per_s for each in figures], [each.mean_us for each in figures]):
        middle = sum(values) / len(values)
        if any(abs(value - middle) > within * middle for value in values):
            return False
    return True


def _mean_us(values: Sequence[int]) -> float:
    return sum(values) / len(values) / 1000 if values else 0.0
