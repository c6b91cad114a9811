"""`Timers`: calls at a time of the `Clock`'s scale, so that tests and simulations control the time."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from stoker.backends.api.clock import Clock

_log = logging.getLogger("stoker.scheduling")

#: Calls that `run_due` makes one after the other yield to other callbacks of the loop after this time, nanoseconds.
_SHARE_NS: Final = 1_000_000


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancels the call."""


class Timers(Protocol):
    """Schedules calls on the event loop.

    Attributes:
        is_delivering: Whether the results of a batch are being delivered. The next steps of ensembles that `call_soon` gets meanwhile wait
            in `due`, so that they share a batch without another turn of the loop. A scheduler sets it, and calls `run_due` at the end.
        due: The calls that wait for `run_due`.
    """

    is_delivering: bool
    due: deque[Callable[[], None]]

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once the clock shows `when_ns`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after all requests that have already arrived are queued: in the loop's next turn at the latest."""

    def run_due(self) -> None:
        """Makes the calls in `due`."""


class LoopTimers:
    """Timers of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, defer: Callable[[Callable[[], None]], bool] | None = None) -> None:
        """`defer` delays a callback to the end of the current read and returns whether it did (`Reads.defer`); None: callbacks are never
        deferred.
        """
        self._loop = loop
        self._clock = clock
        self._defer = defer
        self.is_delivering = False
        self.due: deque[Callable[[], None]] = deque()
        self._is_running_due = False

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when_ns - self._clock.now_ns()) / 1e9, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        if self.is_delivering:
            self.due.append(callback)
        elif self._defer is None or not self._defer(callback):
            self._loop.call_soon(callback)

    def run_due(self) -> None:
        # A call may end a batch whose results make further calls due: they are made here, so that the stack stays flat.
        if self._is_running_due:
            return
        self._is_running_due = True
        due = self.due
        end_ns = self._clock.now_ns() + _SHARE_NS
        try:
            while due and self._clock.now_ns() < end_ns:
                try:
                    due.popleft()()
                except Exception:  # noqa: BLE001 - a defect of one scheduler must not affect others
                    _log.exception("a call at the end of a batch failed unexpectedly")
        finally:
            self._is_running_due = False
        while due:
            self._loop.call_soon(due.popleft())
