"""`Scheduler`: accepts or refuses a request now, and owes every accepted one exactly one answer.

It drives the pure queue and batcher on the event loop: whenever something arrives, a worker becomes free, or a timer rings, it expires
what is out of time and hands batches to free workers. A waiter that is cancelled leaves the queue at once; one whose batch is already
running is forgotten and its result dropped. Nothing else is touched either way: no request's fate depends on a batchmate.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from backends.api.batch import BatchItem, BatchResult, Outcome
from backends.api.clock import Clock
from backends.api.errors import DeadlineExceeded, ErrorCode, Overloaded, QueueTimeout, ServingError, Unavailable
from server.core.model_config import DynamicBatching, ModelConfig, QueuePolicy
from server.core.request import InferRequest, InferResponse
from server.core.timers import Timer, Timers
from server.execution.worker import InstanceWorker, Work
from server.observability.recorder import FailureReason, VersionRecorder
from server.scheduling.batcher import DynamicBatcher, Wait
from server.scheduling.ordering import ReleaseOrder
from server.scheduling.queue import QueueEntry, RequestQueue

#: A batch goes this many turns of the event loop after its first request came (docs/adr/0006): no timer, nothing slept. grpc.aio hands
#: requests over one at a time, some turns apart, though they arrived together; on an idle loop the turns take some tens of microseconds.
GATHER_TURNS = 32
#: On a busy loop turns are long, and time decides, in nanoseconds.
GATHER_NS = 1_000_000
#: After so many requests in a row that met no other, batches stop gathering: a client that sends one at a time would wait for nobody.
LONE_REQUESTS = 16


@dataclass(slots=True, eq=False)
class _Pending(QueueEntry):
    """A queue entry with its request and the future its client waits on."""

    request: InferRequest | None = None
    item: BatchItem | None = None
    future: asyncio.Future[Outcome] | None = None
    dispatched_ns: int = 0
    #: Whether its outcome was recorded: that happens before it is released, where `preserve_ordering` holds it back.
    is_counted: bool = False


class Scheduler:
    """Queue, batcher and workers of one loaded version. Confined to: the event loop."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        workers: Sequence[InstanceWorker],
        *,
        clock: Clock,
        timers: Timers,
        loop: asyncio.AbstractEventLoop,
        recorder: VersionRecorder,
        max_queue_size: int,
    ) -> None:
        """A scheduler over `workers`, with at most `max_queue_size` requests waiting (fewer where the config says so)."""
        settings = config.dynamic_batching or DynamicBatching()
        self._config = config
        self._version = version
        self._workers = list(workers)
        self._clock = clock
        self._timers = timers
        self._loop = loop
        self._recorder = recorder
        self._levels = settings.priority_levels
        self._default_level = settings.default_priority_level or 1
        self._queue = RequestQueue(
            levels=settings.priority_levels,
            default_policy=settings.default_queue_policy,
            policies=settings.priority_queue_policies,
            max_size=min(max_queue_size, config.max_enqueued_requests or max_queue_size),
        )
        # The requests of a decoupled model are streams of their own.
        most_rows = 0 if config.signature.is_decoupled else config.signature.max_batch_size
        self._batcher = DynamicBatcher(most_rows, config.dynamic_batching)
        self._running: set[_Pending] = set()
        self._order = ReleaseOrder[_Pending, Outcome](self._answer) if settings.preserve_ordering else None
        # Inputs whose row shape may differ between requests; most models have none, and then every request may join every batch.
        self._shape_names = tuple(spec.name for spec in config.signature.inputs if spec.optional or not spec.is_static)
        self._most_rows = most_rows
        self._most_turns = GATHER_TURNS if config.dynamic_batching is not None and self._most_rows > 1 else 1
        self._gather_turns = 0
        self._lone_requests = 0
        self._gather_until_ns = 0
        self._pump_is_due = False
        self._is_pumping = False
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        self._is_closed = False
        self._retry_after_s = 1.0

    @property
    def queue_depth(self) -> int:
        """Requests waiting."""
        return len(self._queue)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Queues, runs and answers one validated request.

        Raises:
            Overloaded: the queue is full. QueueTimeout, DeadlineExceeded: its time ran out before it ran. BackendFailed and other
            ServingErrors: what running it raised.
        """
        entry = self._accept(request)
        future = entry.future
        assert future is not None
        try:
            outcome = await future
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise
        if isinstance(outcome, ServingError):
            raise outcome
        return InferResponse(
            model_name=self._config.name,
            model_version=self._version,
            request_id=request.request_id,
            outputs=outcome,
            signature=self._config.signature,
        )

    def _accept(self, request: InferRequest) -> _Pending:
        now_ns = self._clock.now_ns()
        request.received_ns = request.received_ns or now_ns
        level = self._level(request)
        timeout_us = queue_timeout_us(self._queue.policy(level), request.timeout_us)
        entry = _Pending(
            rows=request.rows,
            shape_key=self._shape_key(request),
            level=level,
            enqueued_ns=now_ns,
            timeout_ns=now_ns + timeout_us * 1_000 if timeout_us else None,
            deadline_ns=request.deadline_ns,
            request=request,
            item=BatchItem(request.inputs, request.rows, request.output_names, request.parameters, request.responses),
            future=self._loop.create_future(),
        )
        if self._is_closed:
            raise self._refused(entry, Unavailable(f"model '{self._config.name}' version {self._version} is being unloaded"))
        if request.deadline_ns is not None and request.deadline_ns <= now_ns:
            raise self._refused(entry, DeadlineExceeded("the request's deadline had passed when it arrived"))
        try:
            self._queue.push(entry)
        except Overloaded as error:
            error.retry_after_s = self._retry_after_s
            raise self._refused(entry, error) from None
        self._recorder.queued()
        self._lone_requests = 0 if self._running or len(self._queue) > 1 else self._lone_requests + 1
        if self._order is not None:
            self._order.expect(entry)
        self._ask_pump()
        return entry

    def _refused(self, entry: _Pending, error: ServingError) -> ServingError:
        assert entry.request is not None
        self._recorder.failed(FailureReason.REJECTED, request_ns=entry.enqueued_ns - entry.request.received_ns)
        return error

    def _level(self, request: InferRequest) -> int:
        if not self._levels:
            return 1
        # Triton: a level that does not exist counts as the default one.
        return request.priority if 1 <= request.priority <= self._levels else self._default_level

    def _shape_key(self, request: InferRequest) -> Hashable:
        inputs = request.inputs
        return tuple(inputs[name].shape[1:] if name in inputs else None for name in self._shape_names)

    def _ask_pump(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            self._gather_turns = self._most_turns if self._lone_requests <= LONE_REQUESTS else 1
            self._gather_until_ns = self._clock.now_ns() + GATHER_NS
            self._timers.call_soon(self._gather)

    def _gather(self) -> None:
        """Lets requests that have reached the process already, but not yet the queue, into the batch that is about to go."""
        if not self._pump_is_due:
            return  # the end of a batch has pumped since
        self._gather_turns -= 1
        if self._gather_turns <= 0 or self._queue.rows >= self._most_rows or self._clock.now_ns() >= self._gather_until_ns:
            self._pump()
        else:
            self._timers.call_soon(self._gather)

    def _pump(self) -> None:
        self._pump_is_due = False
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            wake_ns = self._dispatch()
        finally:
            self._is_pumping = False
        self._arm(wake_ns)

    def _dispatch(self) -> int | None:
        """Hands out every batch that can go; returns when to look again."""
        while True:
            now_ns = self._clock.now_ns()
            for expired in self._queue.expire(now_ns):
                self._expire(expired, now_ns)
            worker = self._free_worker()
            if worker is None:
                return self._queue.next_expiry_ns()
            batch = self._batcher.next_batch(self._queue, now_ns)
            if batch is None:
                return None
            if isinstance(batch, Wait):
                expiry_ns = self._queue.next_expiry_ns()
                return batch.until_ns if expiry_ns is None else min(batch.until_ns, expiry_ns)
            self._send(worker, batch, now_ns)

    def _free_worker(self) -> InstanceWorker | None:
        best = max(self._workers, key=lambda worker: worker.free_slots) if len(self._workers) > 1 else self._workers[0]
        return best if best.free_slots > 0 else None

    def _send(self, worker: InstanceWorker, batch: Sequence[QueueEntry], now_ns: int) -> None:
        entries: list[_Pending] = []
        items: list[BatchItem] = []
        for entry in batch:
            assert isinstance(entry, _Pending)
            assert entry.item is not None
            entry.dispatched_ns = now_ns
            self._recorder.dequeued()
            entries.append(entry)
            items.append(entry.item)
        self._running.update(entries)
        worker.submit(Work(items, lambda result: self._finished(entries, result)))

    def _finished(self, entries: list[_Pending], result: BatchResult) -> None:
        timing = {"input_ns": result.input_ns, "infer_ns": result.infer_ns, "output_ns": result.output_ns}
        self._recorder.executed(result.executions, **timing)
        now_ns = self._clock.now_ns()
        for entry, outcome in zip(entries, result.outcomes, strict=True):
            assert entry.request is not None
            assert entry.future is not None
            self._running.discard(entry)
            if entry.future.done():
                continue  # withdrawn or abandoned, and counted then
            request_ns = now_ns - entry.request.received_ns
            entry.is_counted = True
            if isinstance(outcome, ServingError):
                self._recorder.failed(_reason(outcome), request_ns=request_ns)
            else:
                queue_ns = entry.dispatched_ns - entry.enqueued_ns
                self._recorder.succeeded(rows=entry.rows, request_ns=request_ns, queue_ns=queue_ns, **timing)
            self._release(entry, outcome)
        # The worker has a free slot now; a batch may be waiting for it.
        self._pump()

    def _expire(self, entry: QueueEntry, now_ns: int) -> None:
        assert isinstance(entry, _Pending)
        assert entry.request is not None
        self._recorder.dequeued()
        self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - entry.request.received_ns)
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            self._release(entry, DeadlineExceeded("the request's deadline passed while it waited in the queue"))
        else:
            self._release(entry, QueueTimeout("Request timeout expired", retry_after_s=self._retry_after_s))

    def _release(self, entry: _Pending, outcome: Outcome) -> None:
        if self._order is None:
            self._answer(entry, outcome)
        else:
            self._order.complete(entry, outcome)

    def _answer(self, entry: _Pending, outcome: Outcome) -> None:
        assert entry.future is not None
        if not entry.future.done():
            entry.future.set_result(outcome)

    def _withdraw(self, entry: _Pending) -> None:
        assert entry.request is not None
        assert entry.future is not None
        if self._queue.remove(entry):
            self._recorder.dequeued()
        if self._order is not None:
            self._order.forget(entry)
        if entry.future.cancelled() and not entry.is_counted:
            self._recorder.failed(FailureReason.CANCELED, request_ns=self._clock.now_ns() - entry.request.received_ns)

    def _arm(self, wake_ns: int | None) -> None:
        if wake_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake_ns
        self._timer = None if wake_ns is None else self._timers.call_at(wake_ns, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timer_ns = None
        self._pump()

    def abandon(self, why: str) -> None:
        """Answers every request that waits or runs as UNAVAILABLE with `why`. Results of what runs are dropped."""
        waiting = list(self._queue)
        for entry in waiting:
            self._queue.remove(entry)
            self._recorder.dequeued()
        unanswered = [
            entry for entry in (*waiting, *self._running) if isinstance(entry, _Pending) and entry.future and not entry.future.done()
        ]
        now_ns = self._clock.now_ns()
        for entry in unanswered:
            assert entry.request is not None
            entry.is_counted = True
            self._recorder.failed(FailureReason.OTHER, request_ns=now_ns - entry.request.received_ns)
            if self._order is not None:
                self._order.forget(entry)
            self._answer(entry, Unavailable(why))
        self._running.clear()

    async def close(self) -> None:
        """Refuses new requests, answers whatever waits or runs as UNAVAILABLE, closes the workers when their batches have ended."""
        self._is_closed = True
        self.abandon(f"model '{self._config.name}' version {self._version} was unloaded")
        self._arm(None)
        await asyncio.gather(*(worker.close() for worker in self._workers))


def queue_timeout_us(policy: QueuePolicy, requested_us: int) -> int:
    """The timeout a request gets; 0 = none.

    Triton's rule where the policy sets a default: the request's own counts only if overriding is allowed and it is the smaller one.
    Where the policy sets none, a client that asks for a timeout gets it.
    """
    default_us = policy.default_timeout_us
    if not default_us:
        return requested_us
    if requested_us and policy.allow_timeout_override:
        return min(default_us, requested_us)
    return default_us


def _reason(error: ServingError) -> FailureReason:
    return FailureReason.BACKEND if error.code is ErrorCode.BACKEND_FAILED else FailureReason.OTHER
