"""The process before there is a server: signals and standard streams. Imports next to nothing: until then Python itself handles both."""

import os
import signal
import sys
from types import FrameType
from typing import Final

#: The signals that request a shutdown.
SHUTDOWN_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def exit_at_once_on_signal() -> None:
    """For the time before a server exists: a signal ends the process with code 0, there is nothing to drain, to close or to flush.

    No exception carries it: one that is raised while an extension module is being imported may be swallowed there, or crash the process.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, leave)


def open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed (`serve 2>&-`).

    Otherwise the stream is None, and the next socket or file gets its number: what a library or a crash prints would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free number: the stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
