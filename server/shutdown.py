"""Signals: the first SIGTERM or SIGINT asks for a drained shutdown, the second ends the process at once.

The handlers are Python's own (`signal.signal`), not the loop's: a loop gives back the default handlers when it closes, and a second signal
that comes just then would end the process by the signal instead of with an exit code.
"""

import asyncio
import atexit
import os
import signal
import sys
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)
#: Exit code when a second signal cut the shutdown short.
CUT_SHORT = 1


def exit_quietly_on_signal() -> None:
    """For the time before a server exists: a signal ends the process with code 0, there is nothing to drain."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(0)

    for number in NUMBERS:
        signal.signal(number, leave)


class Shutdown:
    """Tells the loop when a shutdown is asked for. Confined to: the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on signals come here, until the process ends."""
        self.asked = asyncio.Event()
        self.signal_name = ""
        self._loop = loop
        atexit.register(_ignore_signals)
        for number in NUMBERS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: it takes no lock and logs nothing.
        if self.signal_name:
            os._exit(CUT_SHORT)
        self.signal_name = signal.Signals(number).name
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.asked.set)


def _ignore_signals() -> None:
    """When all threads have ended. The interpreter gives back the default handlers as it goes, but leaves ignored signals ignored."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
