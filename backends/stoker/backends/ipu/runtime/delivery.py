"""`Delivery`: brings results to the host when they are due.

Where a device's lanes overlap (host reads, computing, host writes) it takes the next micro-batch before the last one's outputs are out. In
real time that needs a second thread; otherwise results are delivered as they are computed.

The inputs of a computed micro-batch are the user's again before its outputs are out. So results that a stop keeps from being delivered are
not lost: the next run delivers them first, or its outputs would go to the memory of another micro-batch.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.streams import OutputStream, TensorManager
from stoker.backends.simulated.pacing import Pacer

Array = npt.NDArray[Any]
#: Called with the anchors that got no data in time.
OnStarved = Callable[[tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs of one micro-batch.

    Attributes:
        values: By anchor; each goes once it is delivered.
        due_ns: When the device has written them.
        has_dummies: Whether some input was dummy data: the device waits for no reader of the outputs.
        is_dummy: Whether all inputs were: no request wants the outputs, and queued memory belongs to other calls.
    """

    values: dict[str, Array]
    due_ns: int
    has_dummies: bool
    is_dummy: bool


class Delivery:
    """Confined to: the device's thread, and the thread it starts where results are delivered behind its back."""

    #: Micro-batches whose results wait to be delivered: one in each stage of reading, computing and writing.
    DEPTH = 3

    def __init__(
        self,
        streams: TensorManager,
        gate: Gate,
        pacer: Pacer,
        undelivered: deque[Results],
        *,
        timeout_ns: int,
        on_starved: OnStarved,
        is_overlapped: bool,
    ) -> None:
        """Delivers to `streams`; on a thread of its own if `is_overlapped`. What a stop leaves undelivered stays in `undelivered`."""
        self._streams = streams
        self._gate = gate
        self._pacer = pacer
        self._timeout_ns = timeout_ns
        self._on_starved = on_starved
        self._pending = undelivered
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if is_overlapped:
            self._thread = threading.Thread(target=self._run, name="ipu-delivery", daemon=True)
            gate.device_threads.add(self._thread)
            self._thread.start()

    def deliver(self, results: Results) -> None:
        """Delivers `results` when they are due, after all earlier ones; may return before that."""
        if self._thread is not None:
            self._gate.wait_for(lambda: len(self._pending) < self.DEPTH, None)
        with self._gate.condition:
            self._pending.append(results)
            self._gate.notify()
        self.catch_up()

    def catch_up(self) -> None:
        """Delivers what is pending, if no other thread does."""
        if self._thread is None:
            self._deliver_pending()

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
                if not self._deliver_pending():
                    return
        except Exception as error:  # noqa: BLE001 - whatever a user's callback raised must end the session, not just this thread
            self._gate.fail(error)

    def _deliver_pending(self) -> bool:
        """False: stopped before everything was delivered."""
        while self._pending:
            if not self._deliver(self._pending[0]):
                return False
            with self._gate.condition:
                self._pending.popleft()
                self._gate.notify()
        return True

    def _deliver(self, results: Results) -> bool:
        """False: stopped before all of them were delivered."""
        if not self._pacer.wait_until(results.due_ns, self._gate.condition, lambda: self._gate.is_stopping):
            return False
        for name in () if results.is_dummy else tuple(results.values):
            stream = self._streams.output(name)
            slot = stream.slot()
            if slot is None and not results.has_dummies:
                slot = self._awaited_slot(stream)
                if slot is None and self._gate.is_stopping:
                    return False
            value = results.values.pop(name)
            if slot is not None:
                np.copyto(slot, value)
                stream.release(None)
        return True

    def _awaited_slot(self, stream: OutputStream) -> Array | None:
        """Memory to write to; None: a flush dropped this output, or the session is stopping."""
        flushes = self._gate.flushes
        starving_since_ns = self._gate.clock.now_ns()
        self._gate.set_starving((stream.anchor.name,))
        try:
            while True:
                seen = self._gate.changes
                slot = stream.slot()
                if slot is not None or self._gate.is_stopping or self._gate.flushes != flushes:
                    return slot
                until_ns = starving_since_ns + self._timeout_ns if self._timeout_ns else None
                if until_ns is not None and self._gate.clock.now_ns() >= until_ns:
                    starving_since_ns = self._gate.clock.now_ns()
                    self._on_starved((stream.anchor.name,))
                    continue
                self._gate.wait_for_change(seen, until_ns)
        finally:
            self._gate.set_starving(())
