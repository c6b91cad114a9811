"""What an infer request that is on its way can be waited for by, beside the engine's own `InFlight`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stoker.server.core.request import InFlight

ResultCallback = Callable[[bytes | Exception], None]
"""Takes the serialised ModelInferResponse, or what went wrong: a `ServingError`, or a defect, to be logged and answered as INTERNAL."""


class AsyncResponse:
    """A task that tells how it ended, unless it was cancelled."""

    __slots__ = ("_is_cancelled", "_on_result", "_task")

    def __init__(self, work: Coroutine[Any, Any, bytes], on_result: ResultCallback) -> None:
        self._on_result = on_result
        self._is_cancelled = False
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._ended)

    def is_done(self) -> bool:
        return self._task.done()

    def when_done(self, call: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: call())

    def cancel(self) -> None:
        self._is_cancelled = True
        self._task.cancel()

    def _ended(self, task: "asyncio.Task[bytes]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._is_cancelled:
            return
        if error is None:
            self._on_result(task.result())
        elif isinstance(error, Exception):
            self._on_result(error)


class _Completed:
    """Stands for a request that was answered when it was asked."""

    def cancel(self) -> None:
        pass


#: The one that there is.
COMPLETED: Final[InFlight] = _Completed()
