"""Decides when to look at the repository again: when files change, when something has to settle, and at the latest every poll interval.

File events only ever trigger a scan, and what a scan sees decides; so events that come twice, late or not at all (network file systems,
exhausted inotify limits) cost nothing but time.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from watchfiles import awatch

log = logging.getLogger("stoker.lifecycle")

#: Events that come within this time of each other trigger one scan, milliseconds.
DEBOUNCE_MS = 200
#: A scan is never repeated sooner than this, seconds, so that a file that is written all the time does not keep the server scanning.
MIN_INTERVAL_S = 0.05

Events = Callable[[], AsyncIterator[object]]
Wait = Callable[[asyncio.Event, float], Awaitable[None]]


class RepositoryWatcher:
    """Calls `rescan` at the right moments. Confined to: the event loop."""

    def __init__(
        self,
        roots: Sequence[Path],
        rescan: Callable[[], Awaitable[bool]],
        *,
        poll_interval_s: float,
        settle_s: float,
        events: Events | None = None,
        wait: Wait | None = None,
    ) -> None:
        """Watches nothing yet.

        Args:
            roots: Folders to watch, with all below them.
            rescan: Looks at the repository; returns whether nothing is left to settle.
            poll_interval_s: The longest time between two scans.
            settle_s: The time between scans while something is settling.
            events: Source of file events in place of the operating system's.
            wait: Waits for an event or a time in seconds, in place of the event loop's clock.
        """
        self._roots = tuple(roots)
        self._rescan = rescan
        self._poll_interval_s = max(poll_interval_s, MIN_INTERVAL_S)
        self._settle_s = max(settle_s, MIN_INTERVAL_S)
        self._events = events or self._file_events
        self._wait = wait or _wait_up_to
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watches until cancelled."""
        listening = asyncio.create_task(self._listen())
        try:
            is_settled = True
            while True:
                await self._wait(self._changed, self._poll_interval_s if is_settled else min(self._settle_s, self._poll_interval_s))
                self._changed.clear()
                is_settled = await self._scan()
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening

    async def _scan(self) -> bool:
        try:
            return await self._rescan()
        except Exception:  # whatever a scan meets, watching must go on, or the server would never notice a repair
            log.exception("scanning the model repository raised; it is tried again")
            return True

    async def _listen(self) -> None:
        try:
            async for _ in self._events():
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - watchfiles raises OSError, RuntimeError and kinds of its own; polling does its work
            log.warning("the model repository cannot be watched (%s); it is looked at every %g s instead", error, self._poll_interval_s)

    def _file_events(self) -> AsyncIterator[object]:
        return awatch(*self._roots, watch_filter=None, debounce=DEBOUNCE_MS, recursive=True)


async def _wait_up_to(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
