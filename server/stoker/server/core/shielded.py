"""`ShieldedTasks`: work that continues when the client that requested it disconnects, so that no model is left half loaded.

A client that waits is answered within a bound, whatever the work waits for.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from stoker.backends.api.errors import DeadlineExceeded, ServingError

T = TypeVar("T")


class ShieldedTasks:
    """Confined to: the event loop."""

    def __init__(self, what: str, log: logging.Logger, limit_s: float) -> None:
        """`what` names the work in texts and in the line that a defect leaves in `log`; clients wait for it up to `limit_s`, in seconds."""
        self._what = what
        self._limit_s = limit_s
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and returns what it does; cancelling the caller does not end it.

        Raises:
            DeadlineExceeded: it has not ended within the limit; it goes on. And what `work` raises.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        ended, _ = await asyncio.wait({task}, timeout=self._limit_s)
        if not ended:
            raise DeadlineExceeded(
                f"{self._what} has not ended within {self._limit_s:g} s (--limit control_timeout_s); it goes on,"
                " and the repository index shows its outcome"
            )
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        # Looked at here, because a caller that went away does not. What a client is to blame for is logged elsewhere; a defect is news.
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ServingError):
            self._log.error("%s failed unexpectedly", self._what, exc_info=error)
