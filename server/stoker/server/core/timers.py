"""Timers on the `Clock`'s scale, so that tests and simulations turn time by hand."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from stoker.backends.api.clock import Clock
from stoker.server.core.read_batching import Reads


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """The call will not happen."""


class Timers(Protocol):
    """Calls functions later, and soon, on the event loop."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once the clock shows `when_ns`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once all that has already arrived is handed over: in the loop's next turn, if not before (see `Reads`)."""


class LoopTimers:
    """Timers of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, reads: Reads | None = None) -> None:
        """`reads` are those of the fronts; None: nobody tells of them."""
        self._loop = loop
        self._clock = clock
        self._reads = reads or Reads()

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when_ns - self._clock.now_ns()) / 1e9, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        if not self._reads.defer(callback):
            self._loop.call_soon(callback)
