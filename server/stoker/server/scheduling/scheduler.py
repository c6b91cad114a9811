"""`Scheduler`: accepts or rejects a request at once, and completes every accepted one exactly once.

It drives the pure queue and batcher on the event loop: when a request arrives, a worker becomes free, or a timer expires, it ends the
expired requests and dispatches batches to free workers. A cancelled request leaves the queue at once; if its batch already runs, its result
is dropped. Other requests of the batch are not affected.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from stoker.backends.api.batch import BatchResult, Outcome
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import DeadlineExceeded, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.response_parameters import parameters_of
from stoker.server.core.model_config import DynamicBatching, ModelConfig
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse
from stoker.server.core.timers import Timer, Timers
from stoker.server.execution.worker import InstanceWorker, Work
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.outcomes import FailureLog, count_batch
from stoker.server.scheduling.pending import Pending, ReleaseOrder, outcome_of
from stoker.server.scheduling.queue import DynamicBatcher, RequestQueue, Wait, earliest, queue_timeout_us
from stoker.server.scheduling.rate_limiter import SchedulerLimits
from stoker.server.scheduling.worker_pool import WorkerPool

log = logging.getLogger("stoker.scheduling")

#: Batches that run on the event loop yield to other callbacks after this time, in nanoseconds, however many wait.
LOOP_SHARE_NS: Final = 1_000_000


class _Batch(Work):
    """A dispatched batch. Confined to: the event loop."""

    __slots__ = ("_scheduler", "entries", "worker")

    def __init__(self, scheduler: "Scheduler", entries: list[Pending], worker: int, now_ns: int) -> None:
        self._scheduler = scheduler
        self.entries = entries
        self.worker = worker
        items: list[InferRequest] = []
        for entry in entries:
            entry.dispatched_ns = now_ns
            items.append(entry.request)
        self.items = items
        self.result = None
        self.is_apart = scheduler.runs_apart

    def on_done(self, result: BatchResult) -> None:
        # A method instead of a callback in an attribute, which would be a cycle that keeps the tensors until the next garbage collection.
        self._scheduler._finished(self, result)

    def next_item(self) -> InferRequest | None:
        return self._scheduler._next_apart(self.entries)


class Scheduler:
    """Queue, batcher and workers of one loaded version. Confined to: the event loop.

    Attributes:
        on_idle: Called whenever the last request in flight has completed.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        workers: Sequence[InstanceWorker],
        *,
        clock: Clock,
        timers: Timers,
        recorder: VersionRecorder,
        max_queue_size: int,
        limits: SchedulerLimits | None = None,
    ) -> None:
        """Makes a scheduler over `workers`, with at most `max_queue_size` waiting requests (fewer if the config says so).

        `limits` is the rate limiter; None: it is off.
        """
        settings = config.dynamic_batching or DynamicBatching()
        self.on_idle: Callable[[], None] | None = None
        self._config = config
        self._signature = config.signature
        #: Whether results may bring requests that are executed again. The owner bounds the requests then.
        self._is_iterative = config.signature.is_iterative
        self._version = version
        self._pool = WorkerPool(workers, recorder, model=config.name, version=version)
        #: The worker, if there is only one: there is no choice and no ejection.
        self._only_worker = workers[0] if len(workers) == 1 else None
        #: The rate limiter; None: it is off.
        self._limits = limits
        if limits is not None:
            limits.bind(self._dispatch)
        self._now_ns = clock.now_ns
        self._timers = timers
        self._recorder = recorder
        self._levels = settings.priority_levels
        self._default_level = settings.default_priority_level or 1
        policies = (settings.default_queue_policy, *settings.priority_queue_policies.values())
        self._has_timeouts = any(policy.default_timeout_us for policy in policies)
        self._queue = RequestQueue[Pending](
            levels=settings.priority_levels,
            default_policy=settings.default_queue_policy,
            policies=settings.priority_queue_policies,
            max_size=max_queue_size if self._is_iterative else min(max_queue_size, config.max_enqueued_requests or max_queue_size),
        )
        # The requests of a decoupled model are separate streams.
        is_apart = config.signature.is_decoupled and not self._is_iterative
        most_rows = 0 if is_apart else config.signature.max_batch_size
        self._batcher = DynamicBatcher(most_rows, config.dynamic_batching)
        #: Whether each request runs alone, one after the other.
        self.runs_apart = not (self._batcher.is_batching or config.signature.is_decoupled)
        self._running: set[_Batch] = set()
        self._failures = FailureLog(config.name, version)
        self._outstanding = 0
        self._order = ReleaseOrder[Pending, Outcome](self._deliver) if settings.preserve_ordering else None
        # Inputs whose row shape may differ between requests. Most models have none; then every request may share every batch.
        self._shape_names = tuple(spec.name for spec in config.signature.inputs if spec.optional or not (spec.is_static or spec.is_ragged))
        self._dispatch_is_due = False
        self._is_dispatching = False
        #: When the current call of `_dispatch` dispatched its first batch, nanoseconds.
        self._begun_ns = 0
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        self._is_closed = False
        self._retry_after_s = 1.0

    @property
    def workers(self) -> Sequence[InstanceWorker]:
        """The workers, by number."""
        return self._pool.workers

    @property
    def outage(self) -> str:
        """Why no instance can run a batch now; empty: one can."""
        outages = [worker.outage for worker in self._pool.workers]
        return outages[0] if outages and all(outages) else ""

    @property
    def is_lost(self) -> bool:
        """Whether every instance is out of service for longer than a restart takes."""
        workers = self._pool.workers
        return bool(workers) and all(worker.is_ejected for worker in workers)

    @property
    def queue_depth(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete."""
        return self._outstanding

    def submit(self, request: InferRequest, done: Done, ended: "Callable[[], None] | None" = None) -> Pending:
        """Queues one validated request; `done` receives its single response later, never before this method returns.

        `ended` is called once, after the response or when the request is cancelled.

        Raises:
            Overloaded: the queue is full. Unavailable: the version is being unloaded. DeadlineExceeded: the deadline has passed. `done` is
                not called for a request rejected in this way.
            rejected so gets no response.
        """
        now_ns = self._now_ns()
        received_ns = request.received_ns
        if not received_ns:
            received_ns = request.received_ns = now_ns
        level = self._level(request) if self._levels else 1
        timeout_us = queue_timeout_us(self._queue.policy(level), request.timeout_us) if self._has_timeouts else request.timeout_us
        timeout_ns = now_ns + timeout_us * 1_000 if timeout_us else None
        shape_key = self._shape_key(request) if self._shape_names else None
        entry = Pending(request, shape_key, level, now_ns, timeout_ns, done, ended or _ignore, self._withdraw)
        if self._is_closed:
            raise self._rejected(entry, Unavailable(f"model '{self._config.name}' version {self._version} is being unloaded"))
        if request.deadline_ns is not None and request.deadline_ns <= now_ns:
            raise self._rejected(entry, DeadlineExceeded("the request's deadline had passed when it arrived"))
        try:
            self._queue.push(entry)
        except Overloaded as error:
            error.retry_after_s = self._retry_after_s
            raise self._rejected(entry, error) from None
        self._outstanding += 1
        self._recorder.queue_depth += 1
        if self._order is not None:
            self._order.expect(entry)
        if not self._dispatch_is_due:
            # The batch window: requests of the same read, or of the same turn of the loop, share a batch.
            self._dispatch_is_due = True
            self._timers.call_soon(self._dispatch)
        return entry

    def wake(self) -> None:
        """An instance can run batches again: dispatches what waits."""
        if not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._timers.call_soon(self._dispatch)

    def notify_cancelled(self, entry: Pending) -> None:
        """The client of a request that a worker has started has gone: the model may look. The result of the request still follows."""
        entry.request.is_cancelled = True
        self._cancel_running(entry)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Submits a request and awaits its response; cancelling the caller cancels the request.

        Raises:
            ServingError: as `submit`. QueueTimeout, DeadlineExceeded: it expired before it ran. BackendFailed and others: its batch failed.
            running it raised.
        """
        return await outcome_of(self.submit, request)

    def _rejected(self, entry: Pending, error: ServingError) -> ServingError:
        entry.is_over = True
        self._recorder.failed(FailureReason.REJECTED, request_ns=entry.enqueued_ns - entry.request.received_ns)
        return error

    def _level(self, request: InferRequest) -> int:
        # Triton: a request with an unknown level gets the default level.
        return request.priority if 1 <= request.priority <= self._levels else self._default_level

    def _shape_key(self, request: InferRequest) -> Hashable:
        inputs = request.inputs
        return tuple(inputs[name].shape[1:] if name in inputs else None for name in self._shape_names)

    def _dispatch(self) -> None:
        """Dispatches every batch that is due, and sets the timer for the next one."""
        self._dispatch_is_due = False
        if self._is_dispatching:
            return
        self._is_dispatching = True
        wake_ns = None
        queue = self._queue
        only_worker = self._only_worker
        limits = self._limits
        self._begun_ns = 0
        try:
            while queue.size:
                now_ns = self._now_ns()
                self._begun_ns = self._begun_ns or now_ns
                if now_ns - self._begun_ns >= LOOP_SHARE_NS:
                    # Callbacks that have waited for the loop meanwhile run first.
                    self._dispatch_is_due = True
                    self._timers.call_soon(self._dispatch)
                    return
                if queue.timed:
                    for expired in queue.expire(now_ns):
                        self._expire(expired, now_ns)
                if limits is not None:
                    worker = limits.acquire(self._pool.all_free(now_ns)) if queue.size else None
                elif only_worker is not None:
                    worker = 0 if only_worker.free_slots > 0 else None
                else:
                    worker = self._pool.free(now_ns)
                if worker is None:
                    if self.is_lost:
                        self._fail_waiting(f"model '{self._config.name}' has no instance in service: {self.outage}")
                        break
                    wake_ns = earliest(queue.next_expiry_ns(), self._pool.next_probe_ns(now_ns))
                    break
                batch = self._batcher.next_batch(queue, now_ns)
                if limits is not None:
                    if isinstance(batch, list):
                        limits.ran(worker)
                    else:
                        limits.release(worker)
                if batch is None:
                    break
                if isinstance(batch, Wait):
                    wake_ns = earliest(queue.next_expiry_ns(), batch.until_ns)
                    break
                self._recorder.queue_depth -= len(batch)
                work = _Batch(self, batch, worker, now_ns)
                self._running.add(work)
                if only_worker is not None:
                    only_worker.submit(work)
                else:
                    self._pool.dispatched(worker)
                    self._pool.workers[worker].submit(work)
        finally:
            self._is_dispatching = False
        if limits is not None and not queue.size:
            limits.withdraw()
        if wake_ns != self._timer_ns:
            self._arm(wake_ns)

    def _next_apart(self, entries: list[Pending]) -> InferRequest | None:
        """Takes the request that runs alone, on the event loop, after `entries`, and adds it to them.

        None: there is none of the same rows and shape, a request has expired, or the loop's other callbacks come first.
        """
        queue = self._queue
        if not queue.size:
            return None
        now_ns = self._now_ns()
        if now_ns - self._begun_ns >= LOOP_SHARE_NS or (queue.timed and queue.timed[0][0] <= now_ns):
            return None
        entry = queue.take_first(entries[0])
        if entry is None:
            return None
        entry.dispatched_ns = now_ns
        self._recorder.queue_depth -= 1
        entries.append(entry)
        return entry.request

    def _finished(self, batch: _Batch, result: BatchResult) -> None:
        self._running.discard(batch)
        if self._limits is not None:
            self._limits.release(batch.worker)
        now_ns = self._now_ns()
        if self._only_worker is None:
            self._pool.ended(batch.worker, result, now_ns)
        count_batch(self._recorder, batch.entries, result, now_ns)
        if not (self._is_dispatching or self._is_iterative):
            # The thread need not wait until the responses of this batch are encoded.
            self._dispatch()
        release = self._deliver if self._order is None else self._order.complete
        noted: Outcome | None = None
        outcomes = result.outcomes
        timers = self._timers
        timers.is_delivering = True
        try:
            if self._is_iterative:
                # The next batch is formed after the results: the requests that are executed again join those that wait.
                self.wake()
            # Compiled, `zip` with `strict` takes 0.3 us.
            for at, entry in enumerate(batch.entries):
                outcome = outcomes[at]
                if isinstance(outcome, ServingError) and outcome is not noted:
                    noted = outcome  # requests of one failed batch share one error
                    self._failures.note(outcome, entry.request, now_ns)
                release(entry, outcome)
        finally:
            timers.is_delivering = False
        if timers.due:
            timers.run_due()

    def _expire(self, entry: Pending, now_ns: int) -> None:
        self._recorder.queue_depth -= 1
        if entry.is_over:
            return  # cancelled by the callback of another expired request
        self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - entry.request.received_ns)
        entry.is_counted = True
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            self._release(entry, DeadlineExceeded("the request's deadline passed while it waited in the queue"))
        else:
            self._release(entry, QueueTimeout("Request timeout expired", retry_after_s=self._retry_after_s))

    def _release(self, entry: Pending, outcome: Outcome) -> None:
        if self._order is None:
            self._deliver(entry, outcome)
        else:
            self._order.complete(entry, outcome)

    def _deliver(self, entry: Pending, outcome: Outcome) -> None:
        if entry.is_over:
            return
        result: EngineResult
        if isinstance(outcome, ServingError):
            result = outcome
        else:
            outputs = outcome if isinstance(outcome, dict) else dict(outcome)
            result = InferResponse(self._config.name, self._version, entry.request.request_id, outputs, self._signature)
            if outputs.__class__ is not dict:
                result.parameters = parameters_of(outputs)
        try:
            entry.complete(result)
        except Exception:  # a defect of one frontend; the other requests of the batch must still get their responses
            log.exception("the result callback of a request raised")
        self._end(entry)

    def _end(self, entry: Pending) -> None:
        entry.ended()
        # The exception probably refers to the entry: a cycle would keep the request in memory until the next garbage collection.
        entry.ended = _ignore
        self._outstanding -= 1
        if not self._outstanding and self.on_idle is not None:
            self.on_idle()

    def _withdraw(self, entry: Pending) -> None:
        if self._queue.remove(entry):
            self._recorder.queue_depth -= 1
            if self._limits is not None and not self._queue.size:
                self._limits.withdraw()
        else:
            self._cancel_running(entry)
        if self._order is not None:
            self._order.forget(entry)
        if not entry.is_counted:
            self._recorder.failed(FailureReason.CANCELED, request_ns=self._now_ns() - entry.request.received_ns)
        self._end(entry)

    def _cancel_running(self, entry: Pending) -> None:
        for batch in self._running:
            for index, each in enumerate(batch.entries):
                if each is entry:
                    self._pool.workers[batch.worker].cancel(batch, index)
                    return

    def _arm(self, wake_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake_ns
        self._timer = None if wake_ns is None else self._timers.call_at(wake_ns, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timer_ns = None
        self._dispatch()

    def abandon(self, why: str) -> None:
        """Fails every request that waits or runs with UNAVAILABLE and the text `why`. The results of running batches are dropped."""
        self._fail_waiting(why)
        running = [entry for batch in self._running for entry in batch.entries if not entry.is_over]
        self._fail(running, Unavailable(why))
        self._running.clear()

    def _fail_waiting(self, why: str) -> None:
        waiting = list(self._queue)
        for entry in waiting:
            self._queue.remove(entry)
        self._recorder.queue_depth -= len(waiting)
        self._fail(waiting, Unavailable(why))

    def _fail(self, entries: Sequence[Pending], error: ServingError) -> None:
        now_ns = self._now_ns()
        for entry in entries:
            if entry.is_over:
                continue  # cancelled by the callback of an earlier request
            if not entry.is_counted:
                entry.is_counted = True
                self._recorder.failed(FailureReason.OTHER, request_ns=now_ns - entry.request.received_ns)
            if self._order is not None:
                self._order.forget(entry)
            self._deliver(entry, error)

    async def close(self) -> None:
        """Rejects new requests, fails those that wait or run with UNAVAILABLE, and closes the workers after their batches have ended."""
        self._is_closed = True
        self.abandon(f"model '{self._config.name}' version {self._version} was unloaded")
        self._arm(None)
        await asyncio.gather(*(worker.close() for worker in self._pool.workers))
        if self._limits is not None:
            self._limits.close()


def _ignore() -> None:
    """The default callback."""
