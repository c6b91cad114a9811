"""`ModelLocks`: operations on one model run one after the other, and continue if their caller is cancelled."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from stoker.backends.api.errors import ServingError, Unavailable

SHUTTING_DOWN = "the server is shutting down"
log = logging.getLogger("stoker.lifecycle")


class ModelLocks:
    """Runs the operations on each model one after the other. Confined to: the event loop."""

    def __init__(self) -> None:
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether any operation runs, including those whose caller was cancelled."""
        return bool(self._busy)

    async def run_locked(self, name: str, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `operation` on the model `name` after all earlier operations on that model.

        Raises:
            As `run_shielded`.
        """

        async def run() -> None:
            async with self._busy.setdefault(name, asyncio.Lock()):
                await operation()

        await self.run_shielded(run())

    async def run_shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which continues if the caller is cancelled.

        Raises:
            Unavailable: all work was cancelled meanwhile. And whatever `work` raises.
        """
        task = self.begin(work)
        # Not awaited directly: a cancelled caller must not leave a partial load.
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable(SHUTTING_DOWN)
        task.result()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts `work` in the background; a defect in it is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def give_up(self) -> list[asyncio.Task[Any]]:
        """Cancels all work; returns its tasks, so that the caller can wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServingError):
            log.error("a lifecycle task ended by an error", exc_info=error)
