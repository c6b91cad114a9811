"""Time of simulated devices: clocks that can be waited for, and how long a device takes.

A device's thread waits for two things at once: for the host to bring or fetch data (a condition) and for a moment (a timeout, or the
modelled end of its work). `WaitableClock.wait` is that one wait, so that a test, or a simulation, moves time instead of spending it.
`Timeline` keeps when a device is free; `Pacer` makes the moments of such a timeline true: as long as the host needs, as long as the model
says, or so on a simulated clock.
"""

import enum
import threading
from collections.abc import Callable
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
        """Blocks until some thread waits for a future time; False after `timeout_s` of the machine's time.

        For whoever moves the clock: moving it before the other thread waits would be too early to be noticed.
        """
        with self._changed:
            return self._changed.wait_for(self._is_waited_for, timeout_s)

    def _is_waited_for(self) -> bool:
        return any(until_ns is not None and until_ns > self._now_ns for _, until_ns in self._waiters.values())


class Pacing(enum.Enum):
    """The effect of the modelled time on a run."""

    NONE = "none"
    """A batch takes the time that the host needs."""
    REALTIME = "realtime"
    """A batch takes the modelled time, or longer if the host is slower."""
    VIRTUAL = "virtual"
    """Modelled time passes on the simulation's clock, none on the machine's."""


class Timeline:
    """The reserved time of one simulated device. Confined to: the thread that holds the device.

    Attributes:
        free_at_ns: The end of the last reservation.
        busy_ns: All reserved time together.
    """

    #: A host that comes this late to work which was already there is not the device's fault: the timeline then closes the gap, so that the
    #: inexact waking of threads does not add up to a lower throughput.
    SLACK_NS = 2_000_000

    def __init__(self) -> None:
        self.free_at_ns = 0
        self.busy_ns = 0

    def reserve(self, duration_ns: int, *, now_ns: int, was_waiting: bool) -> int:
        """Takes the device for `duration_ns` and returns the moment at which that begins.

        Args:
            duration_ns: How long the device is taken.
            now_ns: The present.
            was_waiting: Whether the work was there before the device was free, so that it begins without a gap (but for a late host).
        """
        begins_ns = max(self.free_at_ns, now_ns)
        if was_waiting and now_ns - self.free_at_ns <= self.SLACK_NS:
            begins_ns = self.free_at_ns
        self.free_at_ns = begins_ns + duration_ns
        self.busy_ns += duration_ns
        return begins_ns


class Pacer:
    """Waits for moments of a device's timeline, in the way `pacing` says."""

    def __init__(self, clock: WaitableClock, pacing: Pacing) -> None:
        """Waits on `clock`.

        Raises:
            ValueError: virtual pacing was asked for on a clock that does not move by itself or by its devices.
        """
        if pacing is Pacing.VIRTUAL and not isinstance(clock, VirtualClock):
            raise ValueError(f"pacing 'virtual' needs a VirtualClock, not {type(clock).__name__}")
        self.clock = clock
        self.pacing = pacing

    def wait_until(self, moment_ns: int, condition: threading.Condition, is_stopped: Callable[[], bool]) -> bool:
        """Returns once the moment has come; False if `is_stopped` became true before (whoever stops it notifies `condition`)."""
        if self.pacing is Pacing.REALTIME:
            with condition:
                while not is_stopped() and self.clock.now_ns() < moment_ns:
                    self.clock.wait(condition, moment_ns)
        elif self.pacing is Pacing.VIRTUAL and isinstance(self.clock, VirtualClock):
            self.clock.advance_to(moment_ns)
        return not is_stopped()

    def occupy(self, duration_s: float) -> None:
        """Takes `duration_s` from now on; cannot be stopped."""
        self.wait_until(self.clock.now_ns() + round(duration_s * NS_PER_S), threading.Condition(), lambda: False)
