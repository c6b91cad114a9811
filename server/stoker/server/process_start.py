"""The process before the server exists: signals and standard streams. Imports almost nothing: Python's defaults apply until then."""

import os
import signal
import sys
from types import FrameType
from typing import Final

#: The signals that request a shutdown.
SHUTDOWN_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def exit_at_once_on_signal() -> None:
    """Ends the process with code 0 at a signal, for the time before a server exists: there is nothing to drain, close or flush.

    The handler raises no exception: one that is raised during the import of an extension module may be lost there, or crash the process.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, leave)


def open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed (`serve 2>&-`).

    Otherwise the stream is None, and the next socket or file gets its descriptor number: the output of a library or a crash would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is the stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
