"""Signals: the first SIGTERM or SIGINT asks for a drained shutdown, the second ends the process at once.

While the shutdown delay runs (`--shutdown-delay-secs`), the second one ends the delay instead, and the third one the process.

The handlers are Python's own (`signal.signal`), not the loop's: a loop gives back the default handlers when it closes, and a second signal
that comes just then would end the process by the signal instead of with an exit code.
"""

import asyncio
import atexit
import os
import signal
from types import FrameType

from stoker.server.early_signals import NUMBERS

#: Exit code when a further signal cut the shutdown short.
CUT_SHORT = 1


class Shutdown:
    """Tells a loop when a shutdown is asked for. Confined to: the main thread.

    Attributes:
        signal_name: The signal that asked for it; empty until one has.
        asked: Set on the loop once one has.
        is_late: Whether the time for the shutdown is used up.
    """

    def __init__(self) -> None:
        """From now on signals come here, until the process ends."""
        self.signal_name = ""
        self.asked = asyncio.Event()
        self.is_late = False
        self._forced = asyncio.Event()
        self._is_delaying = False
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(_ignore_signals)
        for number in NUMBERS:
            signal.signal(number, self._receive)

    def bind_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets `asked` on this loop, at once if a signal has come already. Called on the loop, once."""
        self._loop = loop
        if self.signal_name:
            self.asked.set()

    async def delay(self, delay_s: float) -> None:
        """Returns after `delay_s`, or when a second signal comes. REQUIRES: `asked`."""
        self._is_delaying = True
        forced = asyncio.ensure_future(self._forced.wait())
        try:
            await asyncio.wait([forced], timeout=delay_s)
        finally:
            self._is_delaying = False
            forced.cancel()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: it takes no lock and logs nothing.
        if not self.signal_name:
            self.signal_name = signal.Signals(number).name
            self._set(self.asked)
        elif self._is_delaying:
            self._is_delaying = False
            self._set(self._forced)
        else:
            os._exit(CUT_SHORT)

    def _set(self, event: asyncio.Event) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)


def _ignore_signals() -> None:
    """When all threads have ended. The interpreter gives back the default handlers as it goes, but leaves ignored signals ignored."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
