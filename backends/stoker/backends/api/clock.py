"""The only place that reads time. Everything else takes a `Clock` (or, in pure code, `now_ns` as a parameter)."""

import time
from collections.abc import Callable
from typing import Protocol

from stoker.backends.api.native import mypyc_attr


class Clock(Protocol):
    """A source of time; tests and simulations supply their own."""

    def now_ns(self) -> int:
        """Nanoseconds on a monotonic scale with an arbitrary origin."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; only for stamps that people read."""


#: Time that the thread it is called in has spent on a processor, in nanoseconds from an arbitrary origin.
thread_cpu_ns: Callable[[], int] = time.thread_time_ns


@mypyc_attr(allow_interpreted_subclasses=True)
class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        #: Not a method around it: time is read several times for every request.
        self.now_ns: Callable[[], int] = time.monotonic_ns

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
