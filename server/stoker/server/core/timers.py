"""`Timers`: calls at a time of the `Clock`'s scale, so that tests and simulations control the time."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from stoker.backends.api.clock import Clock


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancels the call."""


class Timers(Protocol):
    """Schedules calls on the event loop."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once the clock shows `when_ns`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after all requests that have already arrived are queued: in the loop's next turn at the latest."""


class LoopTimers:
    """Timers of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, defer: Callable[[Callable[[], None]], bool] | None = None) -> None:
        """`defer` delays a callback to the end of the current read and returns whether it did (`Reads.defer`); None: callbacks are never
        deferred.
        """
        self._loop = loop
        self._clock = clock
        self._defer = defer

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when_ns - self._clock.now_ns()) / 1e9, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        if self._defer is None or not self._defer(callback):
            self._loop.call_soon(callback)
