"""Threads that step back: what they do can wait for others, the event loop and quick models above all."""

import logging
import os
import platform
import threading

log = logging.getLogger("stoker.execution")

#: The largest nice value there is.
MOST_NICE = 19


def raise_niceness(steps: int) -> None:
    """Raises the nice value of the calling thread, and so of all that it starts from now on, by `steps`; at most to `MOST_NICE`.

    That takes no privilege. Only on Linux has each thread a value of its own; elsewhere nothing is changed.
    """
    if not steps or platform.system() != "Linux":
        return
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, min(MOST_NICE, os.getpriority(os.PRIO_PROCESS, thread) + steps))
    except OSError as error:  # a sandbox; the model runs all the same
        log.warning("nice is without effect here: %s", error.strerror)
