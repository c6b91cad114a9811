"""`ToTheEnd`: work that goes on when the client who asked for it goes away. A model half loaded because a client hung up helps nobody."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from backends.api.errors import ServingError


class ToTheEnd:
    """Confined to: the event loop."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        """`what` names the work in the line that a defect leaves in `log`."""
        self._what = what
        self._log = log
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; cancelling the caller does not end it.

        Raises:
            What `work` raises.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        # Looked at here, because a caller that went away does not. What a client is to blame for is logged elsewhere; a defect is news.
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ServingError):
            self._log.error("%s failed unexpectedly", self._what, exc_info=error)
