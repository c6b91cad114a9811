"""An event loop whose time advances only while nothing is ready: waits cost no time, and every duration is exact."""

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
#: How long a thread that was begun meanwhile may take before the loop's time passes to the next timer, real seconds.
THREADS_S = 2.0


class _Selector(selectors.SelectSelector):
    """Advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._before = set(threading.enumerate())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # only a thread can make something happen
        # Threads take real time: they have some before virtual time passes.
        if timeout > 0 and not self._before.issuperset(threading.enumerate()) and (ready := super().select(THREADS_S)):
            return ready
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s. A thread that it waits for takes no time, unless it needs more than `THREADS_S` and a timer is set."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on such a loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
