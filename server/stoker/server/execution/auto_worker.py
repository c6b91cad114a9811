"""`AutoWorker`: runs what is quick on the event loop and everything else in its thread, by what it has measured."""

import asyncio
from collections.abc import Callable, Sequence

from stoker.backends.api.backend import Instance
from stoker.backends.api.batch import BatchProcessor, BatchResult, Share
from stoker.backends.api.clock import Clock, thread_cpu_ns
from stoker.backends.api.model import ModelSignature
from stoker.server.execution.worker import ThreadWorker, Work, run_batch
from stoker.server.tuning.inline_policy import InlinePolicy


class AutoWorker(ThreadWorker):
    """A worker of one slot whose batches run on the loop while they are quick (see `inline_policy.py`), and in its thread when not.

    Never both at once: a batch runs on the loop only while the thread has none. Measured is the time that the running thread spends on
    the processor, at 0.3 us a look: what it waits for is, for an instance that only computes, the interpreter or a core, and tells
    nothing of the model. What it takes by the clock counts only where it is extreme.
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
        """REQUIRES: `may_run_on_loop(instance)`. `cpu_ns` gives the CPU time of the thread it is called in."""
        self._cpu_ns = cpu_ns
        self._inline_policy = InlinePolicy()
        self._has_one_shape = all(spec.is_static for spec in signature.inputs)
        super().__init__(name, instance, signature, clock, loop)

    def submit(self, work: Work) -> None:
        items = work.items
        size = self._size(items)
        if self._in_flight or not self._inline_policy.may_run_on_loop(size):
            super().submit(work)
            return
        begun_ns = self._cpu_ns()
        result = run_batch(self.processors[0], items)
        wall_ns = result.input_ns + result.infer_ns + result.output_ns
        self._inline_policy.ran(size, cpu_ns=self._cpu_ns() - begun_ns, wall_ns=wall_ns)
        work.on_done(result)

    def _run(self, processor: BatchProcessor, items: Sequence[Share]) -> BatchResult:
        begun_ns = self._cpu_ns()
        result = run_batch(processor, items)
        result.cpu_ns = self._cpu_ns() - begun_ns
        return result

    def _finished(self, work: Work, result: BatchResult) -> None:
        wall_ns = result.input_ns + result.infer_ns + result.output_ns
        self._inline_policy.ran(self._size(work.items), cpu_ns=result.cpu_ns, wall_ns=wall_ns)
        super()._finished(work, result)

    def _size(self, items: Sequence[Share]) -> int:
        """Rows, or bytes where rows differ in size: what the time of a batch goes by."""
        if self._has_one_shape:
            return items[0].rows if len(items) == 1 else sum([item.rows for item in items])
        return sum(array.nbytes for item in items for array in item.inputs.values())


def may_run_on_loop(instance: Instance) -> bool:
    """Whether `execution: auto` may ever run batches of `instance` on the event loop."""
    return instance.only_computes and instance.pipeline_depth <= 1
