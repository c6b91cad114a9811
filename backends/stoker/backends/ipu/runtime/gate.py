"""`Gate`: a condition on which the host's threads and the device's threads wait for each other.

A session has one condition for all its streams. Every change (new data, a free slot, a stop, a flush, an error) notifies it, and every
waiting thread checks again. The gate also records how the run of the session ended, so that no thread waits for an ended run.
"""

import threading
import weakref
from collections.abc import Callable, Iterable

from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, IpuRuntimeError
from stoker.backends.simulated.pacing import WaitableClock


class Gate:
    """A condition that also records the end of the run. Any thread may use it.

    Attributes:
        condition: Notified at every change. It is reentrant.
        clock: The clock of timeouts.
        changes: Number of notifications. If the number is unchanged, nothing happened in between.
        flushes: Number of requested flushes. The device compares it with the previous number.
        device_threads: Threads of the device. None of them waits for the end of another, because this could deadlock.
    """

    def __init__(self, name: str, clock: WaitableClock) -> None:
        """Creates a gate for the executable `name`."""
        self._name = name
        self.condition = threading.Condition()
        self.clock = clock
        self.changes = 0
        self.flushes = 0
        self.device_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._is_stopping = False
        self._error: IpuRuntimeError | None = None
        self._starving: dict[int, tuple[str, ...]] = {}

    @property
    def is_stopping(self) -> bool:
        """Whether the device's threads shall end."""
        return self._is_stopping

    @property
    def error(self) -> IpuRuntimeError | None:
        """The error that ended the run; None if there was none."""
        return self._error

    def notify(self) -> None:
        """Notifies all waiting threads of a change."""
        with self.condition:
            self.changes += 1
            self.condition.notify_all()

    def flush(self) -> None:
        """Lets the device use dummy data for missing data of its current call."""
        with self.condition:
            self.flushes += 1
            self.notify()

    def stop(self) -> None:
        """Tells the device's threads to end."""
        with self.condition:
            self._is_stopping = True
            self.notify()

    def fail(self, error: Exception) -> None:
        """Ends the run with `error`, as an `IpuRuntimeError` if it is none; the first error stays."""
        if not isinstance(error, IpuRuntimeError):
            cause, error = error, ApplicationRuntimeError(f"executable '{self._name}' failed: {type(error).__name__}: {error}")
            error.__cause__ = cause
        with self.condition:
            if self._error is None:
                self._error = error
            self._is_stopping = True
            self.notify()

    def reopen(self) -> None:
        """Lets threads run again after `stop`, or after `fail` once its cause is gone."""
        with self.condition:
            self._is_stopping = False
            self._error = None

    def wait_for(self, is_ready: Callable[[], bool], until_ns: int | None) -> bool:
        """Waits until `is_ready` is true, `until_ns` is reached, or the run ends; returns the last value of `is_ready`.

        `is_ready` is called with the condition held.
        """
        with self.condition:
            while not is_ready():
                if self._is_stopping or (until_ns is not None and self.clock.now_ns() >= until_ns):
                    return is_ready()
                self.clock.wait(self.condition, until_ns)
            return True

    def wait_for_change(self, seen: int, until_ns: int | None) -> None:
        """Waits until `changes` differs from `seen`, the time is reached, or the run ends."""
        self.wait_for(lambda: self.changes != seen, until_ns)

    def set_starving(self, anchors: Iterable[str]) -> None:
        """Records which anchors the calling thread waits for."""
        with self.condition:
            self._starving[threading.get_ident()] = tuple(anchors)

    def starving(self) -> tuple[str, ...]:
        """Anchors that the device waits for now: inputs without data, outputs without memory."""
        with self.condition:
            return tuple(anchor for anchors in self._starving.values() for anchor in anchors)
