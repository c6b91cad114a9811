"""`GcuInstance`, and `GcuBatchProcessor`, which passes it the requests of a batch one by one.

`CardExecutable`: one instance's engine on clusters of a card, the batches it runs there, and what becomes of it when the card fails.

    merge   each request's inputs are copied to their place in the device's buffers, asynchronously
    run     with the number of samples there really are: the engine takes the smallest compiled batch that holds them
    split   each request's part of the outputs is copied to fresh memory, asynchronously
    (small pieces are copied together, since asking for a copy takes a card longer than putting them together takes the host)
    then the stream is synchronised: no request's memory is used after that, also where something failed

A card that asks for a reset gets it before the next batch, and the engine is loaded again, as is that of every other occupant of the card
when its next batch comes. A stream that does not end in time is given up in the same way. A lost card stays lost: a model that is loaded
again goes to another.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchItem, BatchProcessor, BatchResult, Outcome, Share
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import BackendFailed, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import DeviceFailed, StatusError, StreamClosed, StreamTimeout
from stoker.backends.gcu.serving.mount import Mount, Slot
from stoker.backends.gcu.serving.options import ModelParameters
from stoker.backends.gcu.serving.placement import Placement
from stoker.backends.gcu.serving.pool import GcuPool
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.simulated.serving.pool import LoadedExecutable

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CardRun:
    """One batch that ran.

    Attributes:
        outputs: One for each item: its outputs by name.
        merged_ns, ran_ns, done_ns: When the inputs were queued, the run had ended, and all was at the host; on the clock given.
    """

    outputs: Sequence[Mapping[str, Array]]
    merged_ns: int
    ran_ns: int
    done_ns: int


class CardExecutable(LoadedExecutable):
    """Any thread may run batches on it: as many at once as there are slots.

    Attributes:
        placement: Where it runs.
        parameters: How.
    """

    device_errors: ClassVar = (StatusError,)

    def __init__(
        self, pool: GcuPool, placement: Placement, executable: GcuExecutable, layout: SampleLayout, parameters: ModelParameters
    ) -> None:
        """Loads `executable` to `placement`.

        Raises:
            StatusError: the card rejects it.
        """
        super().__init__(placement.card, pool.counters, pool.clock)
        self.placement = placement
        self.parameters = parameters
        self._pool = pool
        self._executable = executable
        self._layout = layout
        self._lock = threading.Lock()
        self._mount: Mount | None = self._new_mount()

    def run(self, items: Sequence[Share], clock: Clock) -> CardRun:
        """Runs `items`, which have no more samples than the layout's capacity, as one batch.

        Raises:
            ServingError: a request or the card is at fault; none of the requests' memory is in use any more.
        """
        with self.counted_batch():
            mount = self._usable_mount()
            with mount.slot() as slot:
                return self._run(mount, slot, items, clock)

    def close(self) -> None:
        """Takes everything off the card. Called once, when no batch is under way."""
        with self._lock:
            self._unmount()

    def _run(self, mount: Mount, slot: Slot, items: Sequence[Share], clock: Clock) -> CardRun:
        run_ended_ns: list[int] = []
        try:
            samples = slot.merge(items)
            merged_ns = clock.now_ns()
            slot.run(samples).add_done_callback(lambda _: run_ended_ns.append(clock.now_ns()))
            outputs = slot.split(items)
            slot.finish(self.parameters.timeout_s)
        except StreamTimeout:
            self._give_up(mount)
            raise
        except BaseException:
            if not slot.drain(self.parameters.timeout_s):
                self._give_up(mount)
            raise
        done_ns = clock.now_ns()
        # Where nothing was copied back, the run's end may be recorded a moment later.
        return CardRun(outputs, merged_ns, run_ended_ns[0] if run_ended_ns else done_ns, done_ns)

    def _give_up(self, mount: Mount) -> None:
        """Ends all that `mount` has on the card, hanging streams included."""
        with self._lock:
            if self._mount is mount:
                self._unmount()

    def _usable_mount(self) -> Mount:
        with self._lock:
            if self._mount is None or not self._mount.is_usable:
                self._unmount()
                try:
                    self._mount = self._new_mount()
                except StatusError as error:
                    raise Unavailable(f"simulated card {self.placement.card} failed: {error}") from error
            return self._mount

    def _new_mount(self) -> Mount:
        return self._pool.mount(self.placement, self._executable, self._layout, self.parameters.pipeline_depth)

    def _unmount(self) -> None:
        mount, self._mount = self._mount, None
        if mount is not None:
            self._pool.unmount(mount)

    def failure(self, error: Exception) -> ServingError:
        assert isinstance(error, StatusError)
        self._counters.count_fault(self.placement.card, error.status.name)
        where = f"simulated card {self.placement.card}"
        if isinstance(error, DeviceFailed):
            hint = "" if error.is_lost else "; it is reset before the next batch"
            return Unavailable(f"{where} failed: {error}{hint}")
        if isinstance(error, StreamTimeout):
            return Unavailable(f"{where}: a batch was given up after {self.parameters.timeout_s} s (parameter timeout_ms): {error}")
        if isinstance(error, StreamClosed):
            return Unavailable(f"{where} stopped before this batch was done: {error}")
        return BackendFailed(f"{where}: {error}")


class GcuInstance(Instance):
    """Runs batches of any size up to max_batch_size; several threads may, up to `pipeline_depth`.

    Attributes:
        loaded: What it has on its card.
    """

    def __init__(self, loaded: CardExecutable, signature: ModelSignature, *, on_close: Callable[[], None]) -> None:
        """Runs what `signature` says on `loaded`; `on_close` gives back what is not the card's."""
        self.loaded = loaded
        self.pipeline_depth = loaded.parameters.pipeline_depth
        self.batch_processor = GcuBatchProcessor
        self._signature = signature
        self._on_close = on_close

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """As `Instance.execute`. The server's batches come by `GcuBatchProcessor`, without being put together on the host first."""
        lead = int(self._signature.is_batched)
        rows = next((array.shape[0] for array in inputs.values()), 0) if lead else 1
        [outputs_of_item] = self.loaded.run([BatchItem(inputs, rows, tuple(output_names))], SystemClock()).outputs
        shapes = {spec.name: spec.model_dims for spec in self._signature.outputs}
        return {name: array.reshape((*array.shape[:lead], *shapes[name])) for name, array in outputs_of_item.items()}

    def close(self) -> None:
        self.loaded.close()
        self._on_close()


class GcuBatchProcessor(BatchProcessor):
    """Confined to: one slot of one worker."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        """Of a `GcuInstance`; its buffers are on the card, and there are none on the host."""
        assert isinstance(instance, GcuInstance)
        self._loaded = instance.loaded
        self._clock = clock

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        """See `BatchProcessor`. Copies to the device are waited for together with the run, and so counted under `infer_ns`."""
        begun_ns = self._clock.now_ns()
        ran = self._loaded.run(items, self._clock)
        result.input_ns += ran.merged_ns - begun_ns
        result.infer_ns += ran.ran_ns - ran.merged_ns
        result.output_ns += ran.done_ns - ran.ran_ns
        result.executions.append(sum(item.rows for item in items))
        return list(ran.outputs)
