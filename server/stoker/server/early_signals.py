"""Signals before there is a server. Imports next to nothing: until its handlers stand, Python's own answer a signal, with a traceback."""

import os
import signal
from types import FrameType
from typing import Final

#: What asks for a shutdown.
NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


def exit_at_once_on_signal() -> None:
    """For the time before a server exists: a signal ends the process with code 0, there is nothing to drain, to close or to flush.

    No exception carries it: one that is raised while an extension module is being imported may be swallowed there, or crash the process.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    for number in NUMBERS:
        signal.signal(number, leave)
