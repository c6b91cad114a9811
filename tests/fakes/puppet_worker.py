"""A worker whose batches the test finishes, and timers that run when the test advances the clock."""

import heapq
from collections.abc import Sequence

import numpy as np

from stoker.backends.api.batch import BatchResult, Outcome
from stoker.server.core.request import InferRequest
from stoker.server.core.virtual_timers import VirtualTimer, VirtualTimers
from stoker.server.execution.worker import Work


class PuppetWorker:
    """Takes up to `slots` batches and keeps them in `works` until the test calls `finish`."""

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        self.works: list[Work] = []
        self.history: list[list[int]] = []
        self.is_closed = False
        self.outage = ""
        self.is_ejected = False
        #: The batch and the place of each cancelled request.
        self.cancelled: list[tuple[Work, int]] = []

    @property
    def free_slots(self) -> int:
        return self._slots - len(self.works)

    @property
    def rows(self) -> list[int]:
        """Rows of each request of the oldest batch in work."""
        return [item.rows for item in self.works[0].items]

    @property
    def requests(self) -> list[InferRequest]:
        """The requests of the oldest batch in work."""
        return self.requests_of(0)

    def requests_of(self, index: int) -> list[InferRequest]:
        """The requests of a batch in work."""
        return [item for item in self.works[index].items if isinstance(item, InferRequest)]

    def submit(self, work: Work) -> None:
        assert self.free_slots > 0
        self.works.append(work)
        self.history.append([item.rows for item in work.items])

    def cancel(self, work: Work, index: int) -> None:
        self.cancelled.append((work, index))

    def finish(self, outcomes: Sequence[Outcome] | None = None, index: int = 0) -> None:
        """Ends a batch in work; without `outcomes` each request gets its own inputs back under output names `OUT`."""
        work = self.works.pop(index)
        if outcomes is None:
            outcomes = [{"OUT": next(iter(item.inputs.values()))} for item in work.items]
        rows = sum(item.rows for item in work.items)
        work.on_done(BatchResult(list(outcomes), [rows], input_ns=1, infer_ns=2, output_ns=3))

    async def close(self) -> None:
        self.is_closed = True


class HandTimers(VirtualTimers):
    """Timers on a clock the test turns: `run()` makes every call that is due, `advance` turns the clock first."""

    def __init__(self) -> None:
        super().__init__(now_ns=1_000_000_000)

    def run(self) -> None:
        self.run_while(lambda: self._pending[0][0] <= self.now)  # the calls themselves may move the clock

    def turn(self) -> None:
        """One turn of the loop: makes the calls that are due now, except those scheduled by them."""
        due = [heapq.heappop(self._pending) for _ in range(sum(1 for item in self._pending if item[0] <= self.now))]
        for _, _, callback in due:
            callback()

    def advance(self, us: int) -> None:
        """Turns the clock by `us` microseconds, ringing every timer at its own time on the way."""
        end_ns = self.now + us * 1_000
        self.run_while(lambda: self._pending[0][0] <= end_ns)
        self.now = max(self.now, end_ns)

    @property
    def next_ns(self) -> int | None:
        """When the next pending call is due, nanoseconds; None: there is none."""
        return min(
            (when_ns for when_ns, _, call in self._pending if not (isinstance(call, VirtualTimer) and call.is_cancelled)), default=None
        )


class RecorderLog:
    """A VersionRecorder that keeps its calls.

    Attributes:
        hand_overs: The number of requests of each report of requests that ran apart.
        compute_ns: Their times.
        padded_elements: Useful and computed elements of each request whose inputs were padded.
        cache_hits: Time and time in the queue of each request that the response cache completed, nanoseconds.
        cache_misses: Requests that ran and whose responses were stored.
    """

    def __init__(self) -> None:
        self.queue_depth = 0
        self.succeeded_rows: list[int] = []
        self.failures: list[str] = []
        self.executions: list[int] = []
        self.queue_ns: list[int] = []
        self.ejected_counts: list[int] = []
        self.worker_deaths = 0
        self.hand_overs: list[int] = []
        self.compute_ns: list[tuple[int, int, int]] = []
        self.cache_hits: list[tuple[int, int]] = []
        self.cache_misses = 0
        self.padded_elements: list[tuple[int, int]] = []

    def first_response_buckets(self, bounds_ns: Sequence[int] | None) -> None:
        pass

    def padded(self, *, useful: int, computed: int) -> None:
        self.padded_elements.append((useful, computed))

    def uses_cache(self, is_cached: bool) -> None:
        self.is_cached = is_cached

    def cache_hit(self, *, request_ns: int, queue_ns: int, lookup_ns: int) -> None:
        self.cache_hits.append((request_ns, queue_ns))

    def cache_missed(self, *, lookup_ns: int) -> None:
        self.cache_misses += 1

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self.executions.extend(rows)

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        assert len(rows) == len(request_ns) == len(queue_ns)
        self.succeeded_rows.extend(rows)
        self.queue_ns.extend(queue_ns)

    def succeeded_apart(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], compute_ns: Sequence[tuple[int, int, int]]
    ) -> None:
        assert len(rows) == len(request_ns) == len(queue_ns) == len(compute_ns)
        self.hand_overs.append(len(rows))
        self.compute_ns.extend(compute_ns)
        self.succeeded_rows.extend(rows)
        self.queue_ns.extend(queue_ns)

    def ejected(self, count: int) -> None:
        self.ejected_counts.append(count)

    def worker_died(self) -> None:
        self.worker_deaths += 1

    def failed(self, reason: object, *, request_ns: int) -> None:
        self.failures.append(reason.value)  # type: ignore[attr-defined]


def rows_array(rows: int, *shape: int, value: float = 0.0) -> np.ndarray:
    return np.full((rows, *(shape or (2,))), value, dtype=np.float32)
