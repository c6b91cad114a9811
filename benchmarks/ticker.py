"""A kernel timer that fires at a fixed interval to the microsecond.

An event loop's own timers are rounded to the millisecond by epoll, which would add up to a millisecond to every latency of an open loop; a
loop that spins instead would take the core that the server may need. Linux's timerfd is exact and costs nothing in between.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

_CLOCK_MONOTONIC = 1
_NONBLOCK = os.O_NONBLOCK
_libc = ctypes.CDLL(None, use_errno=True)


class _TimeSpec(ctypes.Structure):
    _fields_: ClassVar = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_: ClassVar = [("interval", _TimeSpec), ("first", _TimeSpec)]


class Ticker:
    """Calls `on_tick` on `loop` every `interval_ns`, from one interval from now until closed. Ticks that were missed come as one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_ns: int, on_tick: Callable[[], None]) -> None:
        self._loop = loop
        self._on_tick = on_tick
        self._fd = _checked(_libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK))
        every = _TimeSpec(*divmod(max(1, interval_ns), 1_000_000_000))
        _checked(_libc.timerfd_settime(self._fd, 0, ctypes.byref(_TimerSpec(every, every)), None))
        loop.add_reader(self._fd, self._fired)

    def close(self) -> None:
        """Stops the timer."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._on_tick()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"timerfd: {os.strerror(number)}")
    return result
