"""`ModelLocks`: work on models that goes on when whoever asked for it goes away, one piece after the other for each model."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from stoker.backends.api.errors import ServingError, Unavailable

SHUTTING_DOWN = "the server is shutting down"
_log = logging.getLogger("stoker.lifecycle")


class ModelLocks:
    """Confined to: the event loop."""

    def __init__(self) -> None:
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether work on any model is being done, also that of a caller who went away."""
        return bool(self._busy)

    async def run_locked(self, name: str, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does `operation` on the model `name` once what was asked for of it before is done.

        Raises:
            As `run_shielded`.
        """

        async def run() -> None:
            async with self._busy.setdefault(name, asyncio.Lock()):
                await operation()

        await self.run_shielded(run())

    async def run_shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work`; it goes on if the caller is cancelled.

        Raises:
            Unavailable: all work was given up meanwhile. And what `work` raises.
        """
        task = self.begin(work)
        # Not awaited directly: a caller who goes away must not leave half a load behind.
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable(SHUTTING_DOWN)
        task.result()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins `work`, for which nobody need wait; a defect in it is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def give_up(self) -> list[asyncio.Task[Any]]:
        """Cancels all work; returns it, for somebody to wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServingError):
            _log.error("a lifecycle task ended by an error", exc_info=error)
