"""`CardExecutable`: one instance's engine on clusters of a simulated card. It runs batches and handles failures of the card.

    merge   each request's inputs are copied asynchronously to their offset in the device's buffers
    run     with the actual number of samples: the engine takes the smallest compiled batch that holds them
    split   each request's part of the outputs is copied to fresh memory, asynchronously
    (small pieces are copied together, since asking for a copy takes a card longer than putting them together takes the host)
    then the stream is synchronised: no request's memory is used after that, also where something failed

A card that needs a reset is reset before the next batch. Each instance on the card loads its engine again before its own next batch. A
stream that does not end before the timeout is abandoned in the same way. A lost card is never used again: a model that is loaded again goes
to another card.
"""

import threading
from collections.abc import Sequence
from typing import ClassVar

from stoker.backends.api.batch import Share
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ServingError, Unavailable
from stoker.backends.devices.pool import LoadedExecutable
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import DeviceFailed, StatusError, StreamClosed, StreamTimeout
from stoker.backends.gcu.serving.instance import CardRun
from stoker.backends.gcu.serving.mount import Mount, Slot
from stoker.backends.gcu.serving.options import ModelParameters
from stoker.backends.gcu.serving.placement import Placement
from stoker.backends.gcu.serving.pool import GcuPool
from stoker.backends.gcu.serving.sample_layout import SampleLayout


class CardExecutable(LoadedExecutable):
    """Any thread may run batches on it, at most one per slot at a time.

    Attributes:
        placement: The card and clusters that it runs on.
        parameters: The parameters of the model.
    """

    device_errors: ClassVar = (StatusError,)

    def __init__(
        self, pool: GcuPool, placement: Placement, executable: GcuExecutable, layout: SampleLayout, parameters: ModelParameters
    ) -> None:
        """Loads `executable` on the clusters of `placement`.

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
        """Runs `items` as one batch. REQUIRES: they have at most as many samples as the layout's capacity.

        Raises:
            ServingError: a request is invalid or the card failed. The memory of the requests is no longer in use.
        """
        with self.counted_batch():
            mount = self._usable_mount()
            with mount.slot() as slot:
                return self._run(mount, slot, items, clock)

    def close(self) -> None:
        """Removes everything from the card. Called once, when no batch is running."""
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
        # If nothing was copied back, the end of the run may be recorded slightly later.
        return CardRun(outputs, merged_ns, run_ended_ns[0] if run_ended_ns else done_ns, done_ns)

    def _give_up(self, mount: Mount) -> None:
        """Closes everything that `mount` has on the card, including hanging streams."""
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
