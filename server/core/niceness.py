"""Threads that step back: what they do can wait for others, the event loop and quick models above all."""

import os
import platform
import threading

#: The largest nice value there is.
MOST_NICE = 19


def step_back(steps: int) -> None:
    """Raises the nice value of the calling thread, and so of all that it starts from now on, by `steps`; at most to `MOST_NICE`.

    To raise it takes no privilege. Only on Linux has each thread a value of its own; elsewhere nothing is changed.
    """
    if steps and platform.system() == "Linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(MOST_NICE, os.getpriority(os.PRIO_PROCESS, thread) + steps))
