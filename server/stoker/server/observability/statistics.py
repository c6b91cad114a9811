"""The requests that one model version has served so far: counts, histograms and quantiles behind ModelStatistics and the metrics.

Bounds are inclusive upper ends, as in Prometheus (`le`). Counts are kept per bucket and added up only by a scrape, because
requests are many and scrapes are few.

Quantiles are computed from fine buckets, each 5 % wider than the one before, so that a quantile is exact within 5 % at any rank. The last
minute is a ring of slots of 12 s, as in Triton (prometheus-cpp: `max_age` 60 s, 5 `age_buckets`). A slot is cleared when it is used again,
and older slots are left out. Memory therefore does not grow with the number of requests.

The time of a response of a decoupled model starts at the previous response, or at the acceptance of the request. The server cannot measure
how much of it prepared the output, so all of it counts as computing.

A batch costs a dozen integer additions here, and each of its requests two bisects. There are no locks: scheduling reports from the
event loop, and scrapes and statistics calls read on the same loop, so that a snapshot is always consistent.

Semantics are Triton's. The durations of `inference_stats` are per request: a batch that took 5 ms adds 5 ms to each of its requests.
Those of `batch_stats` are per execution. Only successful requests count in rows, queue and compute times; a failed one has its own
count and duration.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from stoker.backends.api.clock import Clock
from stoker.server.core.state import BatchSizeStatistics, Duration, ModelStatistics, ResponseStatistics
from stoker.server.observability.recorder import FailureReason

#: Upper ends for durations, in nanoseconds: 100 us to 60 s, about 2.5 times apart, finer where served models usually respond.
DURATION_BOUNDS_NS: tuple[int, ...] = tuple(
    microseconds * 1_000
    for microseconds in (
        100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
        250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
    )
)  # fmt: skip

#: Upper ends of TensorFlow Serving's latencies, in nanoseconds: 33, from 10 us, each 1.8 times the one before.
SERVING_LATENCY_BOUNDS_NS: tuple[int, ...] = tuple(round(10_000 * 1.8**power) for power in range(33))
#: Upper ends of the time in its queues, in nanoseconds: 52, from 100 us, each 1.2 times the one before.
SERVING_QUEUE_BOUNDS_NS: tuple[int, ...] = tuple(round(100_000 * 1.2**power) for power in range(52))

#: Upper ends of Triton's time to the first response, in nanoseconds.
FIRST_RESPONSE_BOUNDS_NS: tuple[int, ...] = tuple(milliseconds * 1_000_000 for milliseconds in (100, 500, 2_000, 5_000))

#: Upper ends for batch sizes, in rows.
ROWS_BOUNDS: tuple[int, ...] = tuple(1 << power for power in range(11))


class Histogram:
    """Counts of integers by bucket, with their sum. Confined to: the event loop.

    Attributes:
        total: Sum of all observed values, in the unit of the bounds.
    """

    __slots__ = ("_bounds", "_counts", "_shown", "total")

    def __init__(self, bounds: Sequence[int], also: Sequence[int] = ()) -> None:
        """`bounds` ascend strictly; larger values are counted in a bucket without an upper end.

        Values are also counted at the bounds `also`, so that one histogram can be shown in another family's buckets.
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
    def bounds(self) -> Sequence[int]:
        """All bounds that values are counted at."""
        return self._bounds

    def counts(self) -> list[int]:
        """The number of values in each bucket: one for each of `bounds`, and those above the last."""
        return self._counts.copy()

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self._counts)

    def cumulative(self, bounds: Sequence[int] | None = None) -> Iterator[tuple[int | None, int]]:
        """For each bound ascending, how many values were at most that; last `None` (no bound) with the count of all.

        `bounds` are a subset of those that values are counted at; by default the histogram's own.
        """
        counts = list(accumulate(self._counts))
        for bound in self._shown if bounds is None else bounds:
            yield bound, counts[bisect_left(self._bounds, bound)]
        yield None, counts[-1]


SLOTS: Final = 5
SLOT_NS: Final = 12_000_000_000
_STEP: Final = 1.05
#: Bounds from 1 us to more than a quarter of an hour, nanoseconds.
_BOUNDS_NS: Final = tuple(round(1_000 * _STEP**power) for power in range(424))


class _Slot(NamedTuple):
    turn: int
    counts: Histogram


class RollingQuantiles:
    """Quantiles of one duration over the last minute. Confined to: the event loop."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[_Slot | None] = [None] * SLOTS

    def current(self, now_ns: int) -> Histogram:
        """The bucket for the observations of `now_ns`, in nanoseconds."""
        turn = now_ns // SLOT_NS
        slot = self._slots[turn % SLOTS]
        if slot is None or slot.turn != turn:
            slot = self._slots[turn % SLOTS] = _Slot(turn, Histogram(_BOUNDS_NS))
        return slot.counts

    def quantiles_ns(self, ranks: Sequence[float], now_ns: int) -> list[int | None]:
        """For each of `ranks` (0 to 1), the time in nanoseconds that this share of values did not exceed; None: no values."""
        oldest = now_ns // SLOT_NS - SLOTS + 1
        cumulative = [list(slot.counts.cumulative()) for slot in self._slots if slot is not None and slot.turn >= oldest]
        counts = [sum(column[1] for column in row) for row in zip(*cumulative, strict=True)]
        return [_at_rank(counts, rank) for rank in ranks]


class LatencySummaries:
    """The five durations of a model version that Triton summarises. Confined to: the event loop."""

    __slots__ = ("_clock", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.request = RollingQuantiles()
        self.queue = RollingQuantiles()
        self.compute_input = RollingQuantiles()
        self.compute_infer = RollingQuantiles()
        self.compute_output = RollingQuantiles()

    def observe(self, *, request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int) -> None:
        """The requests of one batch completed."""
        now_ns, count = self._clock.now_ns(), len(request_ns)
        self.request.current(now_ns).observe_all(request_ns)
        self.queue.current(now_ns).observe_all(queue_ns)
        self.compute_input.current(now_ns).observe(input_ns, count)
        self.compute_infer.current(now_ns).observe(infer_ns, count)
        self.compute_output.current(now_ns).observe(output_ns, count)


def _at_rank(counts: Sequence[int], rank: float) -> int | None:
    """The upper end of the bucket that holds the value of `rank`; `counts` are cumulative, those of `_BOUNDS_NS` and that of all."""
    if not counts or not counts[-1]:
        return None
    wanted = max(1, rank * counts[-1])
    return next((bound for bound, count in zip(_BOUNDS_NS, counts, strict=False) if count >= wanted), _BOUNDS_NS[-1])


#: Positions with their own counts. Later responses are not listed; their requests are still counted.
MOST_POSITIONS: Final = 1024


@dataclass(slots=True)
class _Count:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def frozen(self) -> Duration:
        return Duration(self.count, self.ns)


class _Position:
    """Responses at one position, over all requests."""

    __slots__ = ("cancel", "empty", "fail", "success")

    def __init__(self) -> None:
        self.success, self.fail, self.empty, self.cancel = _Count(), _Count(), _Count(), _Count()


class ResponseCounts:
    """Counts of a decoupled version's responses. Confined to: the event loop.

    Attributes:
        first_response: Times from a request to its first response, in nanoseconds.
    """

    __slots__ = ("_bounds_ns", "_positions", "first_response")

    def __init__(self) -> None:
        self._positions: list[_Position] = []
        self._bounds_ns = FIRST_RESPONSE_BOUNDS_NS
        self.first_response = Histogram(FIRST_RESPONSE_BOUNDS_NS)

    def set_bounds(self, bounds_ns: Sequence[int]) -> None:
        """Sets the upper bounds of the times to the first response. The times so far are dropped if the bounds change."""
        if tuple(bounds_ns) != self._bounds_ns:
            self._bounds_ns = tuple(bounds_ns)
            self.first_response = Histogram(self._bounds_ns)

    def completed(self, position: int, ns: int) -> None:
        """A response with outputs was returned."""
        if position == 0:
            self.first_response.observe(ns)
        if (found := self._at(position)) is not None:
            found.success.add(ns)

    def ended(self, position: int, ns: int) -> None:
        """The request succeeded; its end, at `position`, is an empty response."""
        if (found := self._at(position)) is not None:
            found.empty.add(ns)

    def failed(self, position: int, ns: int) -> None:
        """An error was returned instead of a response."""
        if (found := self._at(position)) is not None:
            found.fail.add(ns)

    def cancelled(self, position: int, ns: int) -> None:
        """The client had cancelled the request."""
        if (found := self._at(position)) is not None:
            found.cancel.add(ns)

    def snapshot(self) -> tuple[ResponseStatistics, ...]:
        """The counts by position, from 0."""
        return tuple(
            ResponseStatistics(
                compute_infer=Duration(each.success.count + each.fail.count, each.success.ns + each.fail.ns),
                # The time is included in `compute_infer`.
                compute_output=Duration(each.success.count, 0),
                success=each.success.frozen(),
                fail=each.fail.frozen(),
                empty_response=each.empty.frozen(),
                cancel=each.cancel.frozen(),
            )
            for each in self._positions
        )

    def _at(self, position: int) -> _Position | None:
        if position >= MOST_POSITIONS:
            return None
        # Positions come in order, so that the list grows by one at a time.
        while len(self._positions) <= position:
            self._positions.append(_Position())
        return self._positions[position]


class _Executions:
    """Executions of one batch size."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class CacheStatistics:
    """The response cache of one version, and the same by quantile if `clock` is given. Confined to: the event loop.

    Attributes (durations in nanoseconds):
        hit_count, hit_ns: Requests that completed without an execution, and the times of their lookups.
        miss_count, miss_ns: Requests that ran, and the times to look up and to store their responses.
        hits, misses: These times by quantile; None: quantiles are off.
    """

    __slots__ = ("_clock", "hit_count", "hit_ns", "hits", "miss_count", "miss_ns", "misses")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self.hit_count = 0
        self.hit_ns = 0
        self.miss_count = 0
        self.miss_ns = 0
        self.hits = None if clock is None else RollingQuantiles()
        self.misses = None if clock is None else RollingQuantiles()

    def hit(self, ns: int) -> None:
        """Counts a request that completed without an execution."""
        self.hit_count += 1
        self.hit_ns += ns
        if self._clock is not None and self.hits is not None:
            self.hits.current(self._clock.now_ns()).observe(ns)

    def missed(self, ns: int) -> None:
        """Counts a request that ran."""
        self.miss_count += 1
        self.miss_ns += ns
        if self._clock is not None and self.misses is not None:
            self.misses.current(self._clock.now_ns()).observe(ns)


class VersionStatistics:
    """The `VersionRecorder` of one version. Confined to: the event loop.

    Attributes (all since the version was first loaded; durations in nanoseconds):
        success_count, success_ns: Completed requests, and the sum of their end-to-end times.
        failure_counts, failure_ns: Failed requests by reason, and the sum of their times.
        rows: Rows completed.
        queue_ns, input_ns, infer_ns, output_ns: Sums over the completed requests.
        execution_count: Executions of the model.
        queue_depth: Waiting requests.
        responses: Counts by response, if the model is decoupled.
        instances_ejected: Instances that are ejected now.
        worker_deaths: Worker processes that have ended while they were needed.
        request_histogram, queue_histogram, compute_histogram: Times of completed requests; compute is the sum of input, infer and output.
        rows_histogram: Rows of each execution.
        summaries: Times of completed requests by quantile; None: they are off.
        useful_elements, computed_elements: Elements of padded inputs without and with the padding.
        cache: Counts of the response cache; None: the version has none.
        is_cached: Whether the version has a response cache now.
    """

    __slots__ = (
        "_batches",
        "_clock",
        "_last_inference_ms",
        "cache",
        "compute_histogram",
        "computed_elements",
        "execution_count",
        "failure_counts",
        "failure_ns",
        "infer_ns",
        "input_ns",
        "instances_ejected",
        "is_cached",
        "output_ns",
        "queue_depth",
        "queue_histogram",
        "queue_ns",
        "request_histogram",
        "responses",
        "rows",
        "rows_histogram",
        "success_count",
        "success_ns",
        "summaries",
        "useful_elements",
        "worker_deaths",
    )

    def __init__(self, clock: Clock, summaries: LatencySummaries | None = None) -> None:
        self._clock = clock
        self.summaries = summaries
        self._last_inference_ms = 0
        self._batches: dict[int, _Executions] = {}
        self.success_count = 0
        self.success_ns = 0
        self.failure_counts = dict.fromkeys(FailureReason, 0)
        self.failure_ns = 0
        self.rows = 0
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0
        self.execution_count = 0
        self.queue_depth = 0
        self.responses = ResponseCounts()
        self.instances_ejected = 0
        self.worker_deaths = 0
        self.useful_elements = 0
        self.computed_elements = 0
        self.cache: CacheStatistics | None = None
        self.is_cached = False
        self.request_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_LATENCY_BOUNDS_NS)
        self.queue_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_QUEUE_BOUNDS_NS)
        self.compute_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_LATENCY_BOUNDS_NS)
        self.rows_histogram = Histogram(ROWS_BOUNDS)

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self._last_inference_ms = self._clock.wall_ms()
        if not rows:
            return
        rows_left, left = sum(rows), len(rows)
        self.execution_count += left
        # Executed separately: only the sums of the times are known. Each execution gets a share by its rows, and the last one the
        # remainder. Those of equal rows count together.
        sizes: Sequence[tuple[int, int]] = ((rows[0], left),) if left == 1 or rows.count(rows[0]) == left else [(size, 1) for size in rows]
        for size, count in sizes:
            left -= count
            share_input, share_infer, share_output = input_ns, infer_ns, output_ns
            if left:
                share_input, share_infer, share_output = (
                    ns * size // rows_left if rows_left else 0 for ns in (input_ns, infer_ns, output_ns)
                )
                rows_left -= size
                input_ns -= share_input
                infer_ns -= share_infer
                output_ns -= share_output
            self.rows_histogram.observe(size, count)
            batch = self._batches.get(size)
            if batch is None:
                batch = self._batches[size] = _Executions()
            batch.count += count
            batch.input_ns += share_input
            batch.infer_ns += share_infer
            batch.output_ns += share_output

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        count = len(rows)
        self.success_count += count
        self.rows += sum(rows)
        self.input_ns += count * input_ns
        self.infer_ns += count * infer_ns
        self.output_ns += count * output_ns
        self.success_ns += self.request_histogram.observe_all(request_ns)
        self.queue_ns += self.queue_histogram.observe_all(queue_ns)
        self.compute_histogram.observe(input_ns + infer_ns + output_ns, count)
        if self.summaries is not None:
            self.summaries.observe(request_ns=request_ns, queue_ns=queue_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)

    def succeeded_apart(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], compute_ns: Sequence[tuple[int, int, int]]
    ) -> None:
        self.success_count += len(rows)
        self.rows += sum(rows)
        sums_ns: list[int] = []
        for input_ns, infer_ns, output_ns in compute_ns:
            self.input_ns += input_ns
            self.infer_ns += infer_ns
            self.output_ns += output_ns
            sums_ns.append(input_ns + infer_ns + output_ns)
        self.success_ns += self.request_histogram.observe_all(request_ns)
        self.queue_ns += self.queue_histogram.observe_all(queue_ns)
        self.compute_histogram.observe_all(sums_ns)
        if self.summaries is not None:
            for request, queue, (input_ns, infer_ns, output_ns) in zip(request_ns, queue_ns, compute_ns, strict=True):
                self.summaries.observe(request_ns=(request,), queue_ns=(queue,), input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)

    def failed(self, reason: FailureReason, *, request_ns: int) -> None:
        self.failure_counts[reason] += 1
        self.failure_ns += request_ns

    def first_response_buckets(self, bounds_ns: Sequence[int] | None) -> None:
        self.responses.set_bounds(FIRST_RESPONSE_BOUNDS_NS if bounds_ns is None else bounds_ns)

    def padded(self, *, useful: int, computed: int) -> None:
        self.useful_elements += useful
        self.computed_elements += computed

    def uses_cache(self, is_cached: bool) -> None:
        self.is_cached = is_cached
        if is_cached and self.cache is None:
            self.cache = CacheStatistics(None if self.summaries is None else self._clock)

    def cache_hit(self, *, request_ns: int, queue_ns: int, lookup_ns: int) -> None:
        # Triton's rule: a hit is a successful request with a time in the queue, but neither an inference nor an execution.
        self._last_inference_ms = self._clock.wall_ms()
        self.success_count += 1
        self.success_ns += request_ns
        self.queue_ns += queue_ns
        self.request_histogram.observe(request_ns)
        self.queue_histogram.observe(queue_ns)
        if self.summaries is not None:
            self.summaries.queue.current(self._clock.now_ns()).observe(queue_ns)
        if self.cache is not None:
            self.cache.hit(lookup_ns)

    def cache_missed(self, *, lookup_ns: int) -> None:
        if self.cache is not None:
            self.cache.missed(lookup_ns)

    def ejected(self, count: int) -> None:
        self.instances_ejected = count

    def worker_died(self) -> None:
        self.worker_deaths += 1

    def snapshot(self, name: str, version: int) -> ModelStatistics:
        """The counts so far as Triton's statistics of the version `name`, `version`."""
        successes = self.success_count
        cache = self.cache
        computed = successes if cache is None else successes - cache.hit_count
        return ModelStatistics(
            name=name,
            version=version,
            last_inference_ms=self._last_inference_ms,
            inference_count=self.rows,
            execution_count=self.execution_count,
            success=Duration(successes, self.success_ns),
            fail=Duration(sum(self.failure_counts.values()), self.failure_ns),
            queue=Duration(successes, self.queue_ns),
            compute_input=Duration(computed, self.input_ns),
            compute_infer=Duration(computed, self.infer_ns),
            compute_output=Duration(computed, self.output_ns),
            batches=tuple(
                BatchSizeStatistics(
                    batch_size=size,
                    compute_input=Duration(batch.count, batch.input_ns),
                    compute_infer=Duration(batch.count, batch.infer_ns),
                    compute_output=Duration(batch.count, batch.output_ns),
                )
                for size, batch in sorted(self._batches.items())
            ),
            responses=self.responses.snapshot(),
            cache_hit=Duration() if cache is None else Duration(cache.hit_count, cache.hit_ns),
            cache_miss=Duration() if cache is None else Duration(cache.miss_count, cache.miss_ns),
        )
