"""The last 15 minutes of every version, for the console: rates, quantiles and means of short intervals.

`History.sample` compares the counts of each version with those of the previous sample. It reads the integers that requests have already
counted, so that a request costs nothing more. A version without requests and without a queue has no point: an idle server stores one empty
sample per interval.

Quantiles are interpolated within the buckets of the histograms in /metrics, as `histogram_quantile` of Prometheus does.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from operator import sub
from typing import Final, NamedTuple

from stoker.backends.api.clock import Clock
from stoker.server.observability.series import ServerSeries
from stoker.server.observability.statistics import VersionStatistics

#: Time between two samples, seconds.
INTERVAL_S: Final = 2.0
#: Samples kept: 15 minutes.
MOST_SAMPLES: Final = 450
#: Versions with a point in one sample: those with the most requests. A point takes about 150 bytes, all points at most 7 MB.
MOST_VERSIONS: Final = 100
#: The values of a point, in this order.
POINT_FIELDS: Final = (
    "requests_per_s", "failures_per_s", "rows_per_s", "p50_ms", "p99_ms", "queue_ms", "compute_ms", "batch_rows", "queue_depth",
)  # fmt: skip

_NS_PER_MS: Final = 1_000_000
VersionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """What happened since the previous sample.

    Attributes:
        number: 1 for the first sample, then one more for each.
        wall_ms: Wall-clock time of the sample, milliseconds since the epoch.
        requests_in_flight: Requests accepted and not yet completed, at the time of the sample.
        points: By the key and the version of a model, the values of `POINT_FIELDS`. Milliseconds and rows are NaN if no request completed.
        left_out: Versions that had requests but have no point, because there were more than `MOST_VERSIONS`.
    """

    number: int
    wall_ms: int
    requests_in_flight: int
    points: Mapping[VersionKey, "array[float]"]
    left_out: int


class _Counts(NamedTuple):
    """The counts of one version at one time; durations in nanoseconds."""

    successes: int
    failures: int
    rows: int
    queue_ns: int
    compute_ns: int
    executions: int
    executed_rows: int
    durations: Sequence[int]


class _Active(NamedTuple):
    """A version with requests since the previous sample, or with a queue."""

    requests: int
    key: VersionKey
    now: _Counts
    then: _Counts
    statistics: VersionStatistics


_NONE: Final = _Counts(0, 0, 0, 0, 0, 0, 0, ())
_NAN: Final = float("nan")


class History:
    """The samples of a server. Confined to: the event loop."""

    def __init__(self, series: ServerSeries, clock: Clock) -> None:
        """Starts without samples; `series` are the counts of the server."""
        self._series = series
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._before: dict[VersionKey, _Counts] = {}
        self._before_ns = clock.now_ns()
        self._next = asyncio.Event()
        #: Whether no further sample will be taken.
        self.is_closed = False

    @property
    def last_number(self) -> int:
        """The number of the newest sample; 0 before the first."""
        return self._samples[-1].number if self._samples else 0

    def since(self, number: int) -> list[Sample]:
        """The samples after that of `number`, oldest first."""
        return [each for each in self._samples if each.number > number]

    def sample(self) -> None:
        """Takes a sample, and wakes the callers of `wait_next`."""
        now_ns = self._clock.now_ns()
        elapsed_s = max((now_ns - self._before_ns) / 1e9, 1e-3)
        self._before_ns = now_ns
        before, self._before = self._before, {}
        active: list[_Active] = []
        for key, series in self._series.versions.items():
            statistics = series.statistics
            then = before.get(key, _NONE)
            now = self._before[key] = _counts(statistics, then)
            if then.successes > now.successes or then.failures > now.failures:
                then = _NONE  # the version was unloaded and loaded again
            requests = now.successes - then.successes + now.failures - then.failures
            if requests or statistics.queue_depth:
                active.append(_Active(requests, key, now, then, statistics))
        left_out = max(0, len(active) - MOST_VERSIONS)
        if left_out:
            active = nlargest(MOST_VERSIONS, active, key=lambda each: each.requests)
        self._samples.append(
            Sample(
                number=self.last_number + 1,
                wall_ms=self._clock.wall_ms(),
                requests_in_flight=self._series.requests_in_flight(),
                points={each.key: _point(each, elapsed_s) for each in active},
                left_out=left_out,
            )
        )
        self._wake()

    async def wait_next(self) -> None:
        """Returns at the next sample, or when the history is closed."""
        if not self.is_closed:
            await self._next.wait()

    def close(self) -> None:
        """Takes no further sample: the callers of `wait_next` return."""
        self.is_closed = True
        self._wake()

    async def run(self) -> None:
        """Takes a sample in every interval until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                self.sample()
        finally:
            self.close()

    def _wake(self) -> None:
        woken, self._next = self._next, asyncio.Event()
        woken.set()


def _counts(statistics: VersionStatistics, then: _Counts) -> _Counts:
    failures = sum(statistics.failure_counts.values())
    if statistics.success_count == then.successes and statistics.execution_count == then.executions:
        return then._replace(failures=failures)
    return _Counts(
        successes=statistics.success_count,
        failures=failures,
        rows=statistics.rows,
        queue_ns=statistics.queue_ns,
        compute_ns=statistics.input_ns + statistics.infer_ns + statistics.output_ns,
        executions=statistics.execution_count,
        executed_rows=statistics.rows_histogram.total,
        durations=statistics.request_histogram.counts(),
    )


def _point(active: _Active, elapsed_s: float) -> "array[float]":
    """The values of `POINT_FIELDS` between two counts."""
    now, then, statistics = active.now, active.then, active.statistics
    successes = now.successes - then.successes
    executions = now.executions - then.executions
    bounds_ns = statistics.request_histogram.bounds
    below = list(accumulate(map(sub, now.durations, then.durations) if then.durations else now.durations))
    return array(
        "f",
        (
            successes / elapsed_s,
            (now.failures - then.failures) / elapsed_s,
            (now.rows - then.rows) / elapsed_s,
            interpolated_quantile(bounds_ns, below, 0.5) / _NS_PER_MS,
            interpolated_quantile(bounds_ns, below, 0.99) / _NS_PER_MS,
            (now.queue_ns - then.queue_ns) / successes / _NS_PER_MS if successes else _NAN,
            (now.compute_ns - then.compute_ns) / successes / _NS_PER_MS if successes else _NAN,
            (now.executed_rows - then.executed_rows) / executions if executions else _NAN,
            statistics.queue_depth,
        ),
    )


def interpolated_quantile(bounds: Sequence[int], below: Sequence[int], rank: float) -> float:
    """The value of `rank` (above 0, to 1), if the values of each bucket are spread evenly over it; NaN if there are no values.

    Args:
        bounds: Inclusive upper ends of the buckets, ascending; the last bucket has none, and counts as its lower end.
        below: For each bucket, the values in it and in those before; one more than `bounds`.
        rank: Which value.
    """
    if not below or not below[-1]:
        return _NAN
    wanted = rank * below[-1]
    at = bisect_left(below, wanted)
    if at == len(bounds):
        return float(bounds[-1])
    low, before = (bounds[at - 1], below[at - 1]) if at else (0, 0)
    return low + (bounds[at] - low) * (wanted - before) / (below[at] - before)
