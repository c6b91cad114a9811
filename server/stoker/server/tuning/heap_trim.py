"""Returns freed heap memory to the system while the server is idle.

glibc keeps freed memory for the next allocation: up to 64 MiB for each of its arenas (a thread has its own), and everything below an
allocation that lives longer. Under load this saves page faults; on an idle server it only wastes memory. `malloc_trim` returns every
free page of all arenas. Other allocators have no such function and are not touched.
"""

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import Callable, Iterable

from stoker.backends.api.backend import Backend
from stoker.server.core.tasks import in_daemon_thread
from stoker.server.tuning.constants import TRIM_IDLE_SHARE, TRIM_PERIOD_S, TRIM_WORK_S

log = logging.getLogger("stoker.server")


class IdleHeapTrim:
    """Decides when to trim, by the CPU time of the process: once in each idle period after work. Pure."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._trimmed_s = 0.0

    def is_due(self, cpu_s: float, passed_s: float, *, is_quiet: bool, is_forced: bool = False) -> bool:
        """Whether to trim now.

        Args:
            cpu_s: CPU time of the process since its start, seconds.
            passed_s: Time since the last call, seconds.
            is_quiet: Whether no request that holds memory is in flight.
            is_forced: Whether a backend holds memory to return, independent of the CPU time.
        """
        used_s, self._seen_s = cpu_s - self._seen_s, cpu_s
        if not is_quiet or used_s >= TRIM_IDLE_SHARE * passed_s or (cpu_s - self._trimmed_s < TRIM_WORK_S and not is_forced):
            return False
        self._trimmed_s = cpu_s
        return True


def trim_function() -> Callable[[], object] | None:
    """Returns glibc's `malloc_trim`, which runs without the interpreter lock; None: the allocator is not glibc's."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # no such symbol (musl, macOS), or no way to look it up (Windows)
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)


def trim_all(backends: Iterable[Backend]) -> None:
    """Releases the memory that `backends` keep and that reference cycles hold, then the allocator's, which includes a part of both."""
    for backend in backends:
        try:
            backend.give_memory_back()
        except Exception as error:  # noqa: BLE001 - a backend is a plug-in: whatever it raises, the others and the allocator are trimmed
            log.warning("backend '%s' did not give memory back: %s: %s", backend.name, type(error).__name__, error)
    gc.collect()
    trim = trim_function()
    if trim is not None:
        trim()


async def trim_when_idle(
    trim: Callable[[], object],
    is_quiet: Callable[[], bool],
    *,
    period_s: float = TRIM_PERIOD_S,
    cpu_s: Callable[[], float] = time.process_time,
    is_forced: Callable[[], bool] = lambda: False,
) -> None:
    """Calls `trim` when the server becomes idle after work, or while `is_forced`. Runs until cancelled.

    `trim` runs in a thread. Allocations wait for one arena at a time; the event loop does not wait.
    """
    watch = IdleHeapTrim()
    while True:
        await asyncio.sleep(period_s)
        if watch.is_due(cpu_s(), period_s, is_quiet=is_quiet(), is_forced=is_forced()):
            try:
                await in_daemon_thread("trim", trim)
            except RuntimeError as error:  # no thread can start now; a later idle period trims
                log.debug("freed memory is kept for now: %s", error)
