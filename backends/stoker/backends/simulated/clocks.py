"""Time that can be waited for: the machine's, or a simulation's that moves only when a caller moves it.

A device's thread waits for two things at once: for the host to bring or fetch data (a condition) and for a moment (a timeout, or the
modelled end of its work). `WaitableClock.wait` is that one wait, so that a test, or a simulation, moves time instead of spending it.
"""

import threading
from typing import Protocol

from stoker.backends.api.clock import Clock, SystemClock

NS_PER_S = 1_000_000_000


class WaitableClock(Clock, Protocol):
    """A clock whose moments can be waited for."""

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Waits until `condition` is notified or time reaches `until_ns`; None: no moment.

        May return early; the caller looks again at what it waits for.
        REQUIRES: the caller holds `condition`.
        """


class HostClock(SystemClock):
    """The machine's clock."""

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """See `WaitableClock.wait`."""
        if until_ns is None:
            condition.wait()
            return
        remaining_s = (until_ns - self.now_ns()) / NS_PER_S
        if remaining_s > 0:
            condition.wait(min(remaining_s, threading.TIMEOUT_MAX))


class VirtualClock:
    """Time that stands still until `advance` or `advance_to` moves it. Any thread may use it."""

    def __init__(self, *, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._changed = threading.Condition()  # taken after a waiter's own condition, never before it
        self._waiters: dict[object, tuple[threading.Condition, int | None]] = {}

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ms(self) -> int:
        return self._now_ns // 1_000_000

    def advance(self, seconds: float) -> None:
        """Moves time forward by `seconds`, and wakes whoever waited for a moment that is now past."""
        with self._changed:
            target_ns = self._now_ns + round(seconds * NS_PER_S)
        self.advance_to(target_ns)

    def advance_to(self, moment_ns: int) -> None:
        """Moves time forward to `moment_ns`; time that is already later stays as it is."""
        with self._changed:
            if moment_ns <= self._now_ns:
                return
            self._now_ns = moment_ns
            due = [condition for condition, until_ns in self._waiters.values() if until_ns is not None and until_ns <= moment_ns]
        for condition in due:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """See `WaitableClock.wait`."""
        waiter = object()
        with self._changed:
            if until_ns is not None and until_ns <= self._now_ns:
                return
            self._waiters[waiter] = (condition, until_ns)
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                del self._waiters[waiter]

    def until_waited_for(self, timeout_s: float) -> bool:
        """Blocks until some thread waits for a moment that is still to come; False after `timeout_s` of the machine's time.

        For whoever moves the clock: moving it before the other thread waits would be too early to be noticed.
        """
        with self._changed:
            return self._changed.wait_for(self._is_waited_for, timeout_s)

    def _is_waited_for(self) -> bool:
        return any(until_ns is not None and until_ns > self._now_ns for _, until_ns in self._waiters.values())
