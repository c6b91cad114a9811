"""`PackFeeder`: the open pack, and the one thread that waits for its window to end while there is one.

Packs go to the device in the order in which they were completed, on whichever thread completed them or found the window over.
"""

import threading
from collections import deque
from collections.abc import Callable

from poprt.runtime.pack_request import PackRequest
from poprt.runtime.packing import Pack, Packing
from stoker.backends.ipu.runtime.errors import SessionStopped
from stoker.backends.simulated.pacing import WaitableClock


class PackFeeder:
    """Any thread may use it."""

    def __init__(self, packing: Packing[PackRequest], clock: WaitableClock, send: Callable[[Pack[PackRequest]], None]) -> None:
        """A feeder without requests.

        Args:
            packing: Forms the packs.
            clock: What windows go by.
            send: Runs a pack, and tells each of its requests its end; it does not raise, and may wait for the device.
        """
        self._packing = packing
        self._clock = clock
        self._send = send
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ready: deque[Pack[PackRequest]] = deque()
        self._is_closed = False
        self._watcher: threading.Thread | None = None

    def add(self, request: PackRequest) -> None:
        """Takes a request; runs what is complete by it.

        Raises:
            SessionStopped: the feeder is closed.
        """
        with self._changed:
            if self._is_closed:
                raise SessionStopped("the pack runner is closed")
            self._ready += self._packing.add(request, request.lengths, self._clock.now_ns())
            if self._watcher is not None:
                self._changed.notify_all()
            elif self._packing.deadline_ns is not None:
                self._watcher = threading.Thread(target=self._watch, name="ipu-pack-window", daemon=True)
                self._watcher.start()
        self._drain()

    def flush(self) -> None:
        """Runs the open pack now."""
        with self._changed:
            self._ready += self._packing.flush()
            self._changed.notify_all()
        self._drain()

    def close(self) -> None:
        """Fails what was not yet given to the device. May be called again."""
        with self._changed:
            self._is_closed = True
            waiting = [*self._ready, *self._packing.flush()]
            self._ready.clear()
            self._changed.notify_all()
            watcher = self._watcher
        for pack in waiting:
            fail(pack, SessionStopped("the pack runner was closed before the request was sent to the device"))
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while (due_ns := self._packing.deadline_ns) is not None and due_ns > self._clock.now_ns():
                    self._clock.wait(self._changed, due_ns)
                if due_ns is None:  # nothing waits, also because this is closed
                    self._watcher = None
                    return
                self._ready += self._packing.due(self._clock.now_ns())
            self._drain()

    def _drain(self) -> None:
        """Runs what is complete, one thread at a time, so that the order stays."""
        while self._ready:
            with self._sending:
                with self._changed:
                    pack = self._ready.popleft() if self._ready else None
                if pack is not None:
                    self._send(pack)


def fail(pack: Pack[PackRequest], error: BaseException) -> None:
    """Ends all requests of `pack` with `error`."""
    for placed in pack.items:
        placed.item.future.set_exception(error)
