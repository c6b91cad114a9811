"""A histogram of plain integers: one bisect and one addition an observation, nothing else.

Bounds are inclusive upper ends, as in Prometheus (`le`). Counts are kept apart and summed up only when somebody asks, because
requests are many and scrapes are few.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

#: Upper ends for durations, in nanoseconds: 100 us to 60 s, about 2.5 times apart, finer where a served model usually answers.
DURATION_BOUNDS_NS: tuple[int, ...] = tuple(
    microseconds * 1_000
    for microseconds in (
        100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
        250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
    )
)  # fmt: skip

#: Upper ends of TensorFlow Serving's latencies, in nanoseconds: from 10 us, each 1.8 times the one before, 33 of them.
SERVING_LATENCY_BOUNDS_NS: tuple[int, ...] = tuple(round(10_000 * 1.8**power) for power in range(33))
#: Upper ends of the time in its queues, in nanoseconds: from 100 us, each 1.2 times the one before, 52 of them.
SERVING_QUEUE_BOUNDS_NS: tuple[int, ...] = tuple(round(100_000 * 1.2**power) for power in range(52))

#: Upper ends of Triton's time to the first response, in nanoseconds.
FIRST_RESPONSE_BOUNDS_NS: tuple[int, ...] = tuple(milliseconds * 1_000_000 for milliseconds in (100, 500, 2_000, 5_000))

#: Upper ends for batch sizes, in rows.
ROWS_BOUNDS: tuple[int, ...] = tuple(1 << power for power in range(11))


class Histogram:
    """Counts of integers by bucket, with their sum. Confined to: the event loop.

    Attributes:
        total: Sum of everything observed, in the unit of the bounds.
    """

    __slots__ = ("_bounds", "_counts", "_shown", "total")

    def __init__(self, bounds: Sequence[int], also: Sequence[int] = ()) -> None:
        """`bounds` ascend strictly; what exceeds the last one is counted in a bucket without end.

        Values are told apart at the bounds `also` too, so that one count can be shown in another family's buckets.
        """
        self._shown = tuple(bounds)
        self._bounds = tuple(sorted({*bounds, *also}))
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0

    def observe(self, value: int, count: int = 1) -> None:
        """Counts `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.total += value * count

    def observe_all(self, values: Sequence[int]) -> int:
        """Counts each of `values`; returns their sum."""
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        total = sum(values)
        self.total += total
        return total

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._counts)

    def cumulative(self, bounds: Sequence[int] | None = None) -> Iterator[tuple[int | None, int]]:
        """For each bound ascending, how many values were at most that; last `None` (no bound) with the count of all.

        `bounds` are some of those that values are told apart at; by default the histogram's own.
        """
        counts = list(accumulate(self._counts))
        for bound in self._shown if bounds is None else bounds:
            yield bound, counts[bisect_left(self._bounds, bound)]
        yield None, counts[-1]
