"""Memory that requests needed goes back to the system once the server rests.

glibc keeps what is freed for the next allocation: up to 64 MiB for each of its arenas, of which threads have their own, and what lies
below an allocation that lives longer. That is wanted between requests, where it saves page faults, and of no use after them. `malloc_trim`
gives back every free page, of all arenas. Other allocators than glibc's have no such function; they are left alone.
"""

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable, Iterable

from stoker.backends.api.backend import Backend
from stoker.server.core.tasks import in_daemon_thread

log = logging.getLogger("stoker.server")

#: Time between looks at what the server does, seconds.
PERIOD_S = 5.0
#: A server rests while it takes less than this share of a processor.
IDLE_SHARE = 0.05
#: Processor time after which there may be something to give back, seconds; a trim takes some milliseconds.
WORK_S = 0.5


class IdleHeapTrim:
    """Tells from a process's processor time when freed memory is to be given back: once for every rest after work. Pure."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._trimmed_s = 0.0

    def is_due(self, cpu_s: float, passed_s: float, *, is_quiet: bool, is_forced: bool = False) -> bool:
        """Whether it is time.

        Args:
            cpu_s: Processor time of the process since it began.
            passed_s: Time since the last call.
            is_quiet: Whether nothing is in work that holds memory.
            is_forced: Whether there is something to give back however little work was done.
        """
        used_s, self._seen_s = cpu_s - self._seen_s, cpu_s
        if not is_quiet or used_s >= IDLE_SHARE * passed_s or (cpu_s - self._trimmed_s < WORK_S and not is_forced):
            return False
        self._trimmed_s = cpu_s
        return True


def trim_function() -> Callable[[], object] | None:
    """Gives freed memory back when called, without the interpreter's lock; None: this allocator is not glibc's."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # no such symbol (musl, macOS), or no way to look for one (Windows)
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)


def trim_all(backends: Iterable[Backend]) -> None:
    """What the backends keep first, as part of it is freed into the allocator; then what that keeps."""
    for backend in backends:
        try:
            backend.give_memory_back()
        except Exception as error:  # noqa: BLE001 - a backend is a plug-in: whatever it raises, the others and the allocator are asked
            log.warning("backend '%s' did not give memory back: %s: %s", backend.name, type(error).__name__, error)
    trim = trim_function()
    if trim is not None:
        trim()


async def trim_when_idle(
    trim: Callable[[], object],
    is_quiet: Callable[[], bool],
    *,
    period_s: float = PERIOD_S,
    cpu_s: Callable[[], float] = time.process_time,
    is_forced: Callable[[], bool] = lambda: False,
) -> None:
    """Calls `trim` whenever the server rests after work, or while `is_forced`. Runs until cancelled.

    In a thread: allocations of one arena at a time wait for it, the loop does not.
    """
    watch = IdleHeapTrim()
    while True:
        await asyncio.sleep(period_s)
        if watch.is_due(cpu_s(), period_s, is_quiet=is_quiet(), is_forced=is_forced()):
            try:
                await in_daemon_thread("trim", trim)
            except RuntimeError as error:  # no room for another thread now; there will be other rests
                log.debug("freed memory is kept for now: %s", error)
