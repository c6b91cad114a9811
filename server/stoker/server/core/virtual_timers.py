"""`VirtualTimers`: a clock and its timers whose time moves from one pending call to the next, for tests and simulations.

Code that takes its time from a `Clock` and its calls from `Timers` runs on it without an event loop: no wait takes real time, and every
duration is exact.
"""

import heapq
from collections import deque
from collections.abc import Callable


class VirtualTimer:
    """A pending call; see `Timer`."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._callback is None

    def __call__(self) -> None:
        """Makes the call, unless it was cancelled."""
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None


class VirtualTimers:
    """A `Clock` and its `Timers`. Calls that are due at the same time are made in the order in which they were scheduled.

    Attributes:
        now: The present, nanoseconds.
        is_delivering: See `Timers`; here it has no effect.
        due: Always empty.
    """

    def __init__(self, *, now_ns: int = 0) -> None:
        self.now = now_ns
        self._pending: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self.is_delivering = False
        self.due: deque[Callable[[], None]] = deque()

    def run_due(self) -> None:
        """There is never a call to make."""

    def now_ns(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now // 1_000_000

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self.schedule(when_ns, timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.schedule(self.now, callback)

    def schedule(self, when_ns: int, callback: Callable[[], None]) -> None:
        """As `call_at`, for a call that is never cancelled."""
        self._scheduled += 1
        heapq.heappush(self._pending, (when_ns, self._scheduled, callback))

    def run_while(self, goes_on: Callable[[], bool] | None = None) -> None:
        """Makes the pending calls, each at its own time or now if it is overdue, while there is one and `goes_on` returns True."""
        pending, pop = self._pending, heapq.heappop
        while pending and (goes_on is None or goes_on()):
            when_ns, _, callback = pop(pending)
            if when_ns > self.now:
                self.now = when_ns
            callback()
