"""`MainLoop`: the thread that a session's main programs run on, and what becomes of those who wait when it ends."""

import threading
from collections import deque

from stoker.backends.ipu.runtime.delivery import Results
from stoker.backends.ipu.runtime.engine import Engine, EngineParts
from stoker.backends.ipu.runtime.errors import SessionStopped
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.queue_manager import QueueManager, TimeoutCallback


class MainLoop:
    """At most one thread at a time. It knows nothing of the session, so that a session without references can be collected.

    Attributes:
        queues: Whose entries fail when the loop fails; None: there are none.
        timeout_callback: Called with the queue at which the device starved.
        timeout_ns: After how long; 0: never.
        undelivered: Results that a stop kept from reaching the queues.
    """

    def __init__(self, name: str, gate: Gate) -> None:
        """A loop that does not run yet; `name` is the thread's."""
        self.queues: QueueManager | None = None
        self.timeout_callback: TimeoutCallback | None = None
        self.timeout_ns = 0
        self.undelivered: deque[Results] = deque()
        self._name = name
        self._gate = gate
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self, parts: EngineParts, calls: int | None) -> None:
        """Runs `calls` calls of the main program on a thread of its own; None: until the gate stops."""
        self._gate.reopen()
        self._thread = threading.Thread(target=self._run, args=(parts, calls), name=self._name, daemon=True)
        self._gate.device_threads.add(self._thread)
        self._thread.start()

    def connect(self, queues: QueueManager, timeout_callback: TimeoutCallback | None, timeout_ns: int) -> None:
        """Serves `queues` from here on; those before fail, and what was computed for them is dropped. REQUIRES: it does not run."""
        if self.queues is not None:
            self.queues.disconnect_all()
        self.undelivered.clear()
        self.queues, self.timeout_callback, self.timeout_ns = queues, timeout_callback, timeout_ns

    def on_starved(self, anchors: tuple[str, ...]) -> None:
        """Tells the user the first of the queues that the device waits for. Called on a thread of the device."""
        if self.queues is None or self.timeout_callback is None:
            return
        for name in anchors:
            queue = self.queues.inputs.get(name) or self.queues.outputs.get(name)
            if queue is not None:
                self.timeout_callback(queue)
                return

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread's end; whether it has ended. A thread of the device does not wait."""
        thread = self._thread
        if thread is not None and threading.current_thread() not in self._gate.device_threads:
            thread.join(timeout_s)
        return not self.is_running

    def _run(self, parts: EngineParts, calls: int | None) -> None:
        try:
            Engine(parts).run(calls)
        except SessionStopped:
            pass  # it was stopped while it waited
        except Exception as error:  # noqa: BLE001 - whatever a user's handler raised must reach those who wait
            self._gate.fail(error)
        if self._gate.error is not None:
            self.undelivered.clear()
            if self.queues is not None:
                self.queues.fail_all(self._gate.error)
