"""The parameters of a load simulation: the times of a device (`ServiceTimes`), the batching of a model (`Batching`), and the arrivals."""

import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

#: Bounds of a simulation.
MOST_ROWS = 65_536
MOST_INSTANCES = 1_024
MOST_DEPTH = 64
MOST_CLIENTS = 4_096
MOST_QUEUED = 10_000_000
LEAST_RATE_PER_S = 1e-6
MOST_RATE_PER_S = 1e6
MOST_TIME_S = 3_600.0
MOST_REQUESTS = 5_000_000

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The times of a device's calls, by compiled batch size. The rows of a batch run at the smallest size that holds them.

    A call that finds the device idle ends after `latency_s`. A device with several lanes (host reads, computing, host writes) begins the
    next call before the last one's outputs are out: `period_s` after it at the earliest. This is exact for calls of one size, because a
    sequence of lanes of constant times delays a call as its slowest lane does. After a call of another size, the next begins one period of
    the earlier call later.

    Attributes:
        batch_sizes: Rows of the compiled batches, ascending. Where the time depends on the actual rows, each row count is a size.
        latency_s: Seconds of a call on an idle device, host transfers included, by batch size.
        period_s: Seconds between the starts of successive calls of a busy device, by batch size; at most `latency_s`.
        pipeline_depth: Calls of one instance in flight.
        instances: Instances that share the queue. Each has these times, so instances on one card must not share a lane that limits them.
        request_overhead_s: Time of a request outside of queue and device, such as the network's. It takes no capacity.
        host_s: Time for which a response takes the host's event loop, which sends one response after the other.
    """

    batch_sizes: tuple[int, ...]
    latency_s: Mapping[int, float]
    period_s: Mapping[int, float]
    pipeline_depth: int = 1
    instances: int = 1
    request_overhead_s: float = 0.0
    host_s: float = 0.0

    def __post_init__(self) -> None:
        """Checks the times.

        Raises:
            ValueError: a size, a time or a count is missing or out of range; the text names it.
        """
        if not self.batch_sizes or list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise ValueError(f"batch_sizes {list(self.batch_sizes)}: expected one or more different sizes, ascending")
        within("the smallest of batch_sizes", self.batch_sizes[0], 1, MOST_ROWS)
        within("the largest of batch_sizes", self.batch_sizes[-1], 1, MOST_ROWS)
        for name, times in (("latency_s", self.latency_s), ("period_s", self.period_s)):
            if set(times) != set(self.batch_sizes):
                raise ValueError(f"{name} has the batch sizes {sorted(times)}, expected those of batch_sizes: {list(self.batch_sizes)}")
            for size, time_s in times.items():
                within(f"{name} of batch size {size}", time_s, 1e-9, MOST_TIME_S)
        for size in self.batch_sizes:
            if self.period_s[size] > self.latency_s[size] * (1 + 1e-9):
                raise ValueError(
                    f"period_s of batch size {size} is {self.period_s[size]} s, expected at most its latency_s, {self.latency_s[size]} s"
                )
        within("pipeline_depth", self.pipeline_depth, 1, MOST_DEPTH)
        within("instances", self.instances, 1, MOST_INSTANCES)
        within("request_overhead_s", self.request_overhead_s, 0.0, MOST_TIME_S)
        within("host_s", self.host_s, 0.0, MOST_TIME_S)

    def size_for(self, rows: int) -> int:
        """Returns the smallest batch size that holds `rows`. REQUIRES: one does."""
        return self.batch_sizes[bisect_left(self.batch_sizes, rows)]

    def calls_per_s(self, size: int) -> float:
        """Returns the most calls of a batch size per second, of all instances together."""
        return self.instances / max(self.period_s[size], self.latency_s[size] / self.pipeline_depth)


@dataclass(frozen=True, slots=True)
class Batching:
    """The batching of a model, as in config.pbtxt.

    Attributes:
        max_batch_size: Most rows of a batch.
        max_queue_delay_us: How long the oldest request may wait for a larger batch, microseconds.
        preferred_batch_sizes: Row counts of batches that are dispatched at once.
        max_queue_size: Requests that may wait; 0: the server's own bound.
        is_dynamic: Whether requests share batches; False: config.pbtxt has no `dynamic_batching`.
    """

    max_batch_size: int
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_size: int = 0
    is_dynamic: bool = True

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ValueError: one is out of range; the text names it.
        """
        within("max_batch_size", self.max_batch_size, 1, MOST_ROWS)
        within("max_queue_delay_us", self.max_queue_delay_us, 0, round(MOST_TIME_S * 1e6))
        within("max_queue_size", self.max_queue_size, 0, MOST_QUEUED)
        for size in self.preferred_batch_sizes:
            within("a size of preferred_batch_sizes", size, 1, self.max_batch_size)


@dataclass(frozen=True, slots=True)
class OpenArrivals:
    """Requests that arrive at given times, whatever the server does; from `poisson` or `recorded`.

    Attributes:
        times: Starts the sequence of arrivals: for each its time in nanoseconds, ascending, and its rows.
        most_rows: Rows of the largest request.
        rate_per_s: Mean requests per second.
        count: Number of requests; None: without end.
    """

    times: Callable[[], Iterator[tuple[int, int]]]
    most_rows: int
    rate_per_s: float
    count: int | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send the next request after the response to the last one; from `closed_loop`.

    Attributes:
        clients: Number of clients, each with one request in flight.
        most_rows: Rows of each request.
    """

    clients: int
    most_rows: int


Arrivals = OpenArrivals | ClosedLoop


def poisson(rate_per_s: float, rows: int = 1, seed: int = 0) -> OpenArrivals:
    """Returns arrivals with exponentially distributed gaps. A seed gives the same gaps at each rate, up to their scale.

    Raises:
        ValueError: the rate or the rows are out of range.
    """
    within("rate_per_s", rate_per_s, LEAST_RATE_PER_S, MOST_RATE_PER_S)
    within("rows", rows, 1, MOST_ROWS)

    def times() -> Iterator[tuple[int, int]]:
        draw = random.Random(seed)  # noqa: S311 - no secret: arrival times, the same in every run
        scale_ns = NS_PER_S / rate_per_s
        at = 0.0
        while True:
            at += draw.expovariate(1.0)
            yield round(at * scale_ns), rows

    return OpenArrivals(times, rows, rate_per_s)


def recorded(times_s: Sequence[float], rows: int | Sequence[int] = 1) -> OpenArrivals:
    """Returns arrivals at recorded times.

    Args:
        times_s: Seconds from any origin, ascending.
        rows: Rows of every request, or of each.

    Raises:
        ValueError: there is no request, there are too many, their times do not ascend, or their rows are out of range.
    """
    within("the number of recorded times", len(times_s), 1, MOST_REQUESTS)
    each_rows = [rows] * len(times_s) if isinstance(rows, int) else list(rows)
    if len(each_rows) != len(times_s):
        raise ValueError(f"there are {len(each_rows)} row counts for {len(times_s)} recorded times")
    for count in each_rows:
        within("the rows of a recorded request", count, 1, MOST_ROWS)
    for at, (earlier, later) in enumerate(itertools.pairwise(times_s), 2):
        if not earlier <= later:
            raise ValueError(f"recorded time {at} is {later} s, before the time of the request ahead of it, {earlier} s")
    span_s = times_s[-1] - times_s[0]
    within("the span of the recorded times, in seconds,", span_s, 0.0, 1e6)
    arrivals = [(round((time_s - times_s[0]) * NS_PER_S), count) for time_s, count in zip(times_s, each_rows, strict=True)]
    return OpenArrivals(lambda: iter(arrivals), max(each_rows), len(times_s) / span_s if span_s > 0 else math.inf, len(times_s))


def closed_loop(clients: int, rows: int = 1) -> ClosedLoop:
    """Returns clients that send requests of `rows` rows.

    Raises:
        ValueError: their number or the rows are out of range.
    """
    within("clients", clients, 1, MOST_CLIENTS)
    within("rows", rows, 1, MOST_ROWS)
    return ClosedLoop(clients, rows)


def within(what: str, value: float, least: float, most: float) -> None:
    """Checks a number.

    Raises:
        ValueError: `value` is not in `least` to `most`; the text names `what`.
    """
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}, expected {least:,} to {most:,}")
