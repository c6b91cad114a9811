"""`Delivery`: brings results to the host when they are due.

Where a device's lanes overlap (host reads, computing, host writes) it takes the next micro-batch before the last one's outputs are out. In
real time that needs a second thread; otherwise results are delivered as they are computed.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.ipu.runtime.gate import Gate
from backends.ipu.runtime.streams import OutputStream
from backends.ipu.runtime.tensor_manager import TensorManager
from backends.simulated.pacing import Pacer

Array = npt.NDArray[Any]
#: Told the anchors that were waited for in vain.
OnStarved = Callable[[tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs of one micro-batch.

    Attributes:
        values: By anchor.
        due_ns: When the device has written them.
        has_dummies: Whether some input was dummy data: nobody is waited for who might take the outputs.
        is_dummy: Whether all inputs were: nobody wants the outputs, and whatever memory is queued is for others.
    """

    values: Mapping[str, Array]
    due_ns: int
    has_dummies: bool
    is_dummy: bool


class Delivery:
    """Confined to: the device's thread, and the thread it starts where results are delivered behind its back."""

    #: Micro-batches whose results wait to be delivered: one in each stage of reading, computing and writing.
    DEPTH = 3

    def __init__(
        self, streams: TensorManager, gate: Gate, pacer: Pacer, *, timeout_ns: int, on_starved: OnStarved, is_overlapped: bool
    ) -> None:
        """Delivers to `streams`; on a thread of its own if `is_overlapped`."""
        self._streams = streams
        self._gate = gate
        self._pacer = pacer
        self._timeout_ns = timeout_ns
        self._on_starved = on_starved
        self._pending: deque[Results] = deque()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if is_overlapped:
            self._thread = threading.Thread(target=self._run, name="ipu-delivery", daemon=True)
            self._thread.start()

    def deliver(self, results: Results) -> None:
        """Delivers `results` when they are due, after all earlier ones; may return before that."""
        if self._thread is None:
            self._deliver(results)
            return
        if self._gate.wait_for(lambda: len(self._pending) < self.DEPTH, None):
            with self._gate.condition:
                self._pending.append(results)
                self._gate.notify()

    def close(self) -> None:
        """Delivers what is pending, unless the gate is stopping, and ends the thread."""
        if self._thread is None:
            return
        self._is_closing = True
        self._gate.notify()
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            while self._gate.wait_for(lambda: bool(self._pending) or self._is_closing, None) and self._pending:
                self._deliver(self._pending[0])
                with self._gate.condition:
                    self._pending.popleft()
                    self._gate.notify()
        except Exception as error:  # noqa: BLE001 - whatever a user's callback raised must end the session, not just this thread
            self._gate.fail(error)

    def _deliver(self, results: Results) -> None:
        if not self._pacer.wait_until(results.due_ns, self._gate.condition, lambda: self._gate.is_stopping) or results.is_dummy:
            return
        for name, value in results.values.items():
            stream = self._streams.output(name)
            slot = stream.slot()
            if slot is None and not results.has_dummies:
                slot = self._awaited_slot(stream)
            if slot is not None:
                np.copyto(slot, value)
                stream.release(None)

    def _awaited_slot(self, stream: OutputStream) -> Array | None:
        """Memory to write to; None: a flush dropped this output, or the session is stopping."""
        flushes = self._gate.flushes
        self._gate.set_starving((stream.anchor.name,))
        try:
            while True:
                seen = self._gate.changes
                slot = stream.slot()
                if slot is not None or self._gate.is_stopping or self._gate.flushes != flushes:
                    return slot
                until_ns = self._gate.clock.now_ns() + self._timeout_ns if self._timeout_ns else None
                self._gate.wait_for_change(seen, until_ns)
                if self._gate.changes == seen and not self._gate.is_stopping:
                    self._on_starved((stream.anchor.name,))
        finally:
            self._gate.set_starving(())
