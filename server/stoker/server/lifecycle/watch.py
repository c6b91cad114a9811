"""Decides when to scan the repository again, and hides a change until its files have settled.

A folder that is being copied looks complete at any moment; it counts as complete when it stops changing. Deletions are delayed in the same
way, so that `rm -r model && cp -r new model` is a change of the model instead of a removal. Pure: the time is a parameter.

File events only trigger a scan, and the scan decides. Events that come twice, late or never (network file systems, exhausted inotify
limits) therefore only cause delays.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
from watchfiles import awatch

from stoker.server.core.tasks import in_daemon_thread
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot, VersionListing

Part = TypeVar("Part", ModelListing, VersionListing)


@dataclass(slots=True)
class _Watched(Generic[Part]):
    """One part of the repository: its accepted state, and a newer one that has not settled."""

    accepted: Part | None = None
    seen: Part | None = None
    since_ns: int = 0

    @property
    def is_settled(self) -> bool:
        return _mark(self.seen) == _mark(self.accepted)

    def observe(self, part: Part | None, now_ns: int, settle_ns: int) -> None:
        """Records the state of a scan; accepts it (unless the part has vanished) once it has been unchanged for the settling time."""
        if _mark(part) != _mark(self.seen):
            self.since_ns = now_ns
        self.seen = part
        if part is not None and (self.is_settled or self.is_due(now_ns, settle_ns)):
            self.accepted = part

    def is_due(self, now_ns: int, settle_ns: int) -> bool:
        return now_ns - self.since_ns >= settle_ns


@dataclass(slots=True)
class _WatchedModel:
    itself: _Watched[ModelListing] = field(default_factory=lambda: _Watched[ModelListing]())
    versions: dict[int, _Watched[VersionListing]] = field(default_factory=dict)
    last: ModelListing | None = None

    def parts(self) -> list[_Watched[Any]]:
        """The model itself and its versions."""
        return [self.itself, *self.versions.values()]


class SettleFilter:
    """Delays the changes between scans until they have settled. Confined to: the event loop."""

    def __init__(self, settle_ns: int) -> None:
        self._settle_ns = settle_ns
        self._models: dict[str, _WatchedModel] = {}

    def start(self, snapshot: RepositorySnapshot) -> None:
        """Accepts all of `snapshot` at once: there is no settling time at start."""
        for name, listing in snapshot.models.items():
            self.accept(name, listing)

    def accept(self, name: str, listing: ModelListing | None) -> None:
        """Accepts one model as scanned (None: it was removed), because the client that changed it has declared it complete."""
        self._models.pop(name, None)
        if listing is not None:
            versions = {version: _Watched(accepted=part, seen=part) for version, part in listing.versions.items()}
            self._models[name] = _WatchedModel(_Watched(accepted=listing, seen=listing), versions, last=listing)

    def restart(self, snapshot: RepositorySnapshot) -> None:
        """Accepts `snapshot` as settled, because an explicit request declares it complete."""
        self._models.clear()
        self.start(snapshot)

    def settle(self, snapshot: RepositorySnapshot, now_ns: int) -> tuple[RepositorySnapshot, bool]:
        """The accepted listing after this scan, and whether everything has settled (if not, scan again after the settling time)."""
        models: dict[str, ModelListing] = {}
        is_settled = True
        for name in sorted({*self._models, *snapshot.models}):
            watched = self._models.setdefault(name, _WatchedModel())
            listing = self._settle(watched, snapshot.models.get(name), now_ns)
            if listing is not None:
                models[name] = listing
            parts = watched.parts()
            is_settled = is_settled and all(part.is_settled for part in parts)
            if all(part.seen is None and part.accepted is None for part in parts):
                del self._models[name]
        return RepositorySnapshot(models, snapshot.notes), is_settled

    def _settle(self, watched: _WatchedModel, seen: ModelListing | None, now_ns: int) -> ModelListing | None:
        watched.itself.observe(seen, now_ns, self._settle_ns)
        versions = {} if seen is None else seen.versions
        for version in {*watched.versions, *versions}:
            watched.versions.setdefault(version, _Watched()).observe(versions.get(version), now_ns, self._settle_ns)
        self._drop_vanished(watched, now_ns)
        accepted = watched.itself.accepted
        counting = {v: part.accepted for v, part in sorted(watched.versions.items()) if part.accepted is not None}
        if accepted is None:
            watched.last = None
        elif counting or not versions:
            watched.last = replace(accepted, versions=counting)
        # Otherwise its first complete version is still being copied. A new model is not listed yet (it would be reported as broken), and a
        # known one stays as it was (it would be unloaded although a version is being copied).
        return watched.last

    def _drop_vanished(self, watched: _WatchedModel, now_ns: int) -> None:
        """Accepts that parts have vanished, but not while another part of the same model is still changing: that part may replace them."""
        parts = watched.parts()
        if any(part.seen is not None and not part.is_settled for part in parts):
            return
        for part in parts:
            if part.seen is None and part.is_due(now_ns, self._settle_ns):
                part.accepted = None
        watched.versions = {v: part for v, part in watched.versions.items() if part.seen is not None or part.accepted is not None}


def _mark(part: ModelListing | VersionListing | None) -> tuple[str, str | None, int] | None:
    """The facts that must stay the same for a part to count as settled. They include the model's root, because folders may move between
    roots.
    """
    if part is None:
        return None
    return part.fingerprint, part.error, part.root_index if isinstance(part, ModelListing) else 0


log = logging.getLogger("stoker.lifecycle")

#: File events within this time of each other trigger one scan, milliseconds.
DEBOUNCE_MS = 200
#: Least time between two scans, seconds, so that a file that is written all the time does not cause permanent scanning.
MIN_INTERVAL_S = 0.05

Events = Callable[[], AsyncIterator[object]]
Wait = Callable[[asyncio.Event, float], Awaitable[None]]


class RepositoryWatcher:
    """Calls `rescan` when it is due. Confined to: the event loop."""

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
        """Makes a watcher; nothing is watched yet.

        Args:
            roots: Folders to watch, recursively.
            rescan: Scans the repository; returns whether all changes have settled.
            poll_interval_s: The longest time between two scans, seconds.
            settle_s: The time between scans while a change is settling, seconds.
            events: Source of file events; replaces that of the operating system.
            wait: Waits for an event or a time in seconds; replaces the event loop's clock.
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
        except Exception:  # watching must continue after any error of a scan, or the server would never see a repair
            log.exception("scanning the model repository raised; it is tried again")
            return True

    async def _listen(self) -> None:
        try:
            async for _ in self._events():
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - watchfiles raises OSError, RuntimeError and kinds of its own; polling does its work
            log.warning("the model repository cannot be watched (%s); it is looked at every %g s instead", error, self._poll_interval_s)

    async def _file_events(self) -> AsyncIterator[object]:
        # anyio imports its backend at its first use, which would block the loop for seconds on a busy machine.
        await in_daemon_thread("anyio", lambda: anyio.run(anyio.sleep, 0))
        async for changes in awatch(*self._roots, watch_filter=None, debounce=DEBOUNCE_MS, recursive=True):
            yield changes


async def _wait_up_to(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
