"""`InstanceWorker`: owns one `Instance` and runs batches on it, up to its `pipeline_depth` at a time; their results come in order.

The event loop passes a batch through a `SimpleQueue`, and the thread returns it by `call_soon_threadsafe`: one crossing each way for each
batch, not for each request. A worker never accesses scheduler state, and a scheduler never accesses an instance.

`ThreadWorker` runs every batch in a thread, `InlineWorker` on the event loop. `AutoWorker` chooses between both by the measured times.
`StreamWorker` is for models that respond to a request any number of times.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from stoker.backends.api.backend import Instance
from stoker.backends.api.batch import BatchProcessor, BatchResult, Share, processor_for
from stoker.backends.api.clock import Clock, thread_cpu_ns
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.native import mypyc_attr
from stoker.server.core.tasks import NAME_PREFIX, in_daemon_thread, raise_niceness
from stoker.server.tuning.inline_policy import InlinePolicy


class Work:
    """One batch for a worker.

    Attributes:
        items: The requests of the batch.
        result: Set when the batch has run; None before.
        is_apart: Whether each request of the model runs alone. Then `items` has one request, and a worker that runs it on the event loop
            continues with those of `next_item`.
    """

    __slots__ = ("_callback", "is_apart", "items", "result")

    def __init__(self, items: Sequence[Share], on_done: Callable[[BatchResult], None] | None = None) -> None:
        """`on_done` receives the result; None: a subclass overrides the method of that name."""
        self.items = items
        self.result: BatchResult | None = None
        self.is_apart = False
        self._callback = on_done

    def on_done(self, result: BatchResult) -> None:
        """Receives the result, once, on the event loop."""
        assert self._callback is not None
        self._callback(result)

    def next_item(self) -> Share | None:
        """The next request that runs alone, as an item of this work; None: the work ends. Called on the event loop."""
        return None


class InstanceWorker(Protocol):
    """Runs batches on one instance. All methods are called on the event loop."""

    @property
    def free_slots(self) -> int:
        """The number of batches that the worker would accept now."""

    @property
    def outage(self) -> str:
        """Why the instance can run no batch now; empty: it can. Batches wait, or fail at once if it `is_ejected`."""

    @property
    def is_ejected(self) -> bool:
        """Whether the instance is out of service for longer than a restart takes."""

    def submit(self, work: Work) -> None:
        """Accepts a batch. REQUIRES: free_slots > 0."""

    def cancel(self, work: Work, index: int) -> None:
        """The client of the request at place `index` of a running batch has gone: its model may stop early."""

    async def close(self) -> None:
        """Waits for the running batches, then closes the instance."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LocalWorker:
    """What workers have in common whose instance lives in the server's process."""

    outage = ""
    is_ejected = False

    def cancel(self, work: Work, index: int) -> None:
        """The model reads `RequestShare.is_cancelled`."""


class ThreadWorker(LocalWorker):
    """Runs batches in one thread for each pipeline slot of one instance; results are delivered in the order of the batches."""

    def __init__(
        self,
        name: str,
        instance: Instance,
        signature: ModelSignature,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        nice: int = 0,
    ) -> None:
        """`nice` is added to the nice value of the threads."""
        self._instance = instance
        self._loop = loop
        self._nice = nice
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._in_flight: deque[Work] = deque()
        self.depth = max(1, instance.pipeline_depth)
        self.free_slots = self.depth
        self._ended = [loop.create_future() for _ in range(self.depth)]
        #: One thread for each slot.
        self.processors = [processor_for(instance, signature, clock) for _ in self._ended]
        for slot, (processor, ended) in enumerate(zip(self.processors, self._ended, strict=True)):
            threading.Thread(target=self._serve, args=(processor, ended), name=f"{NAME_PREFIX}{name}.{slot}", daemon=True).start()

    def submit(self, work: Work) -> None:
        self.free_slots -= 1
        self._in_flight.append(work)
        self._inbox.put(work)

    async def close(self) -> None:
        for _ in self._ended:
            self._inbox.put(None)
        # The loop's executor must not join the threads: a backend that hangs would keep the process from ending.
        await asyncio.wait(self._ended)
        await in_daemon_thread("close", self._instance.close)

    def _serve(self, processor: BatchProcessor, ended: "asyncio.Future[None]") -> None:
        raise_niceness(self._nice)
        try:
            while (work := self._inbox.get()) is not None:
                result = self._run(processor, work.items)
                self._loop.call_soon_threadsafe(self._finished, work, result)
                # Drop every reference to the batch's tensors while the thread waits for the next batch.
                del work, result
            self._loop.call_soon_threadsafe(_settle, ended)
        except RuntimeError:  # the loop closed first: the process ends, and no request waits
            return

    def _run(self, processor: BatchProcessor, items: Sequence[Share]) -> BatchResult:
        """Runs a batch. Called in a thread."""
        return processor.process(items)

    def _finished(self, work: Work, result: BatchResult) -> None:
        work.result = result
        while self._in_flight and (done := self._in_flight[0].result) is not None:
            self.free_slots += 1
            self._in_flight.popleft().on_done(done)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class InlineWorker(LocalWorker):
    """Runs each batch on the event loop: for models so small that a hop to a thread costs more than the work."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        self._instance = instance
        self._processor = processor_for(instance, signature, clock)
        self.free_slots = 1

    def submit(self, work: Work) -> None:
        self.free_slots = 0
        processor = self._processor
        result = processor.process_apart(work.items[0], work.next_item) if work.is_apart else processor.process(work.items)
        self.free_slots = 1
        work.on_done(result)

    async def close(self) -> None:
        self._instance.close()


class AutoWorker(ThreadWorker):
    """A worker with one slot whose batches run on the loop while they are quick (see `inline_policy.py`), and in its thread otherwise.

    A batch runs on the loop only while the thread runs none. The policy uses the CPU time of the running thread (0.3 us for each reading):
    an instance that only computes waits for the interpreter lock or a core, which is no property of the model. Wall time counts only if it
    is extreme.
    """

    def __init__(
        self,
        name: str,
        instance: Instance,
        signature: ModelSignature,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        cpu_ns: Callable[[], int] = thread_cpu_ns,
    ) -> None:
        """REQUIRES: `may_run_on_loop(instance)`. `cpu_ns` returns the CPU time of the calling thread, nanoseconds."""
        self._cpu_ns = cpu_ns
        self._inline_policy = InlinePolicy()
        self._has_one_shape = all(spec.is_static for spec in signature.inputs)
        super().__init__(name, instance, signature, clock, loop)

    def submit(self, work: Work) -> None:
        items = work.items
        size = items[0].rows if self._has_one_shape and len(items) == 1 else self._size(items)
        if self._in_flight or not self._inline_policy.may_run_on_loop(size):
            super().submit(work)
            return
        begun_ns = self._cpu_ns()
        processor = self.processors[0]
        result = processor.process_apart(items[0], work.next_item) if work.is_apart else processor.process(items)
        wall_ns = result.input_ns + result.infer_ns + result.output_ns
        runs = 1 if result.apart_ns is None else len(result.apart_ns)
        self._inline_policy.ran(size, cpu_ns=self._cpu_ns() - begun_ns, wall_ns=wall_ns, runs=runs)
        work.on_done(result)

    def _run(self, processor: BatchProcessor, items: Sequence[Share]) -> BatchResult:
        begun_ns = self._cpu_ns()
        result = processor.process(items)
        result.cpu_ns = self._cpu_ns() - begun_ns
        return result

    def _finished(self, work: Work, result: BatchResult) -> None:
        wall_ns = result.input_ns + result.infer_ns + result.output_ns
        self._inline_policy.ran(self._size(work.items), cpu_ns=result.cpu_ns, wall_ns=wall_ns)
        super()._finished(work, result)

    def _size(self, items: Sequence[Share]) -> int:
        """The size that selects a batch's size class: rows, or bytes if rows differ in size."""
        if self._has_one_shape:
            return sum([item.rows for item in items])
        return sum(array.nbytes for item in items for array in item.inputs.values())


def may_run_on_loop(instance: Instance) -> bool:
    """Whether `execution: auto` may ever run batches of `instance` on the event loop."""
    return instance.only_computes and instance.pipeline_depth <= 1


class StreamWorker(ThreadWorker):
    """Runs streams as `ThreadWorker` runs batches, but a short stream does not wait for the end of an earlier long one."""

    def _finished(self, work: Work, result: BatchResult) -> None:
        self._in_flight.remove(work)
        self.free_slots += 1
        work.on_done(result)
