"""The table name/version -> state, and the slots that loads hold. The reconciler alone writes the table."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from stoker.server.core.model_config import NoVersions
from stoker.server.core.model_key import name_of
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.loader import VersionSource
from stoker.server.lifecycle.reconcile import Generation, VersionStatus
from stoker.server.lifecycle.servable import Servable

#: A load counts as slow after this time, seconds.
SLOW_S: Final = 10.0


class LoadSlot:
    """The slot of one load.

    Attributes:
        is_slow: Whether the load has run for `SLOW_S`.
        is_lent: Whether the load has passed its first slot to another load.
    """

    __slots__ = ("is_lent", "is_slow")

    def __init__(self) -> None:
        self.is_slow = False
        self.is_lent = False


class LoadSlots:
    """`count` slots for loads, and as many for loads that have become slow. Confined to: the event loop.

    A load begins in a slot of the first kind; once it is slow it moves to one of the second kind, if one is free. So at most twice `count`
    loads run, and quick loads wait only while slow ones hold all slots of both kinds.
    """

    def __init__(self, count: int) -> None:
        """Makes the slots, all free."""
        self._quick = asyncio.Semaphore(count)
        self._slow_free = count
        self._slow: list[LoadSlot] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[LoadSlot]:
        """Waits for a slot and holds it."""
        slot = LoadSlot()
        await self._quick.acquire()
        timer = asyncio.get_running_loop().call_later(SLOW_S, self._became_slow, slot)
        try:
            yield slot
        finally:
            timer.cancel()
            if slot.is_slow:
                self._slow.remove(slot)
            if slot.is_lent:
                self._slow_free += 1
                self._move()
            else:
                self._quick.release()

    def _became_slow(self, slot: LoadSlot) -> None:
        slot.is_slow = True
        self._slow.append(slot)
        self._move()

    def _move(self) -> None:
        for slot in self._slow:
            if self._slow_free and not slot.is_lent:
                self._slow_free -= 1
                slot.is_lent = True
                self._quick.release()


UNLOADED_REASON = "unloaded"
MISSING_REASON = "named by the version policy, but not in the repository"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an ensemble cannot serve although it is desired.

    Attributes:
        reason: The step and its model's state.
        is_pending: Whether the model of the step is being loaded.
    """

    reason: str
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A desired version.

    Attributes:
        generation: The content; None if it is not in the repository.
        source: The loader's argument; None if it is not in the repository.
        error: Why a load would fail, if that is already known.
    """

    generation: Generation | None = None
    source: VersionSource | None = None
    error: str | None = None

    @classmethod
    def of(cls, listing: ModelListing, version: int, serial: int, files: Mapping[str, bytes]) -> "Target":
        """`version` of the scanned model; `serial` distinguishes explicit loads, and `files` replace those of its folder."""
        part = listing.versions.get(version)
        if part is None or listing.config is None:
            return cls()
        source = VersionSource(
            name=listing.name,
            key=listing.key,
            version=version,
            model_dir=listing.directory,
            version_dir=part.directory,
            parsed=listing.config,
            files=files,
            links_root=listing.links_root,
            selected=part.files,
        )
        return cls(Generation(listing.fingerprint, part.fingerprint, serial), source, part.error)


@dataclass(slots=True, eq=False)
class Loading:
    """A running load.

    Attributes:
        generation: The content being loaded.
        task: The task that loads it.
        slot: The load's slot; None: the load waits for one.
    """

    generation: Generation
    task: asyncio.Task[None] | None = None
    slot: LoadSlot | None = None


@dataclass(slots=True, eq=False)
class VersionRecord:
    """The record of one version.

    Attributes:
        version: The version number.
        servable: The servable in service; None: none.
        generation: The content in service.
        loading: The running load.
        failed: The content whose load failed last.
        is_missing: Whether the version is desired, does not serve, and is not in the repository.
        blocked: Why the version, of an ensemble, cannot serve; None: its steps' models serve.
        reason: Why the version failed or is missing.
        draining: Servables that are no longer in the table but that requests still hold, or that are being closed.
        has_served: Whether the version was ever READY.
        reported: The state last reported to the metrics.
        reported_stale: The value of `ModelRecord.is_stale` that was last reported to the metrics.
    """

    version: int
    servable: Servable | None = None
    generation: Generation | None = None
    loading: Loading | None = None
    failed: Generation | None = None
    is_missing: bool = False
    blocked: Blocked | None = None
    reason: str = ""
    draining: int = 0
    has_served: bool = False
    reported: VersionState | None = None
    reported_stale: bool = False

    @property
    def state(self) -> VersionState:
        """The state for clients and metrics. A version that serves is READY, even while a reload runs or after one has failed.

        A version whose instances are all out of service is FAILED.
        """
        if self.servable is not None:
            return VersionState.FAILED if self.servable.outage else VersionState.READY
        if self.loading is not None:
            return VersionState.LOADING if self.loading.slot is not None else VersionState.NEW
        if self.blocked is not None:
            return VersionState.NEW if self.blocked.is_pending else VersionState.FAILED
        if self.failed is not None or self.is_missing:
            return VersionState.FAILED
        return VersionState.DRAINING if self.draining else VersionState.UNLOADED

    @property
    def status(self) -> VersionStatus:
        """The statuses of the versions, the first argument of a plan."""
        loading = None if self.loading is None else self.loading.generation
        return VersionStatus(version=self.version, serving=self.generation, loading=loading, failed=self.failed)


@dataclass(slots=True, eq=False)
class ModelRecord:
    """A model that was desired at least once.

    Attributes:
        name: The model's key.
        listing: The listing of the last scan (or of the last load's overrides); None: the model does not exist.
        targets: The desired versions.
        versions: The records of all known versions.
        serving: The servables in service by version; by None that of the highest version. Only `put_in_service` changes it.
        error: Why the model as a whole cannot be loaded; versions that serve continue to serve.
        is_required: Whether the server is ready only if the model is.
        is_implied: Whether the model was loaded only because an ensemble needs it.
        seen: The state for which the ensembles that need the model were last reconciled.
    """

    name: str
    listing: ModelListing | None = None
    targets: dict[int, Target] = field(default_factory=dict)
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    serving: dict[int | None, Servable] = field(default_factory=dict)
    error: str = ""
    is_required: bool = False
    is_implied: bool = False
    seen: object = None

    @property
    def look(self) -> object:
        """A value that is unchanged as long as nothing has changed that an ensemble depends on."""
        versions = [(version, id(known.servable), known.state, known.reason) for version, known in sorted(self.versions.items())]
        return versions, self.error, bool(self.targets)

    @property
    def desired(self) -> dict[int, Generation | None]:
        """The generations of the targets, the second argument of a plan."""
        return {version: target.generation for version, target in self.targets.items()}

    def version(self, version: int) -> VersionRecord:
        """The record of `version`; made if there is none."""
        return self.versions.setdefault(version, VersionRecord(version))

    def put_in_service(self, known: VersionRecord, servable: Servable | None) -> None:
        """Makes `servable` the one that requests for the version of `known` reach; None: there is none any more."""
        known.servable = servable
        self.serving = {version: each.servable for version, each in sorted(self.versions.items()) if each.servable is not None}
        if self.serving:
            self.serving[None] = next(reversed(self.serving.values()))

    def ready_versions(self) -> tuple[int, ...]:
        """The versions that serve, ascending."""
        return tuple(sorted(version for version, record in self.versions.items() if record.servable is not None))

    def loads(self, *, with_slow: bool = True) -> list[asyncio.Task[None]]:
        """The running loads, with or without those that have become slow."""
        loadings = [record.loading for record in self.versions.values() if record.loading is not None]
        return [
            loading.task
            for loading in loadings
            if loading.task is not None and (with_slow or loading.slot is None or not loading.slot.is_slow)
        ]

    def is_satisfied(self) -> bool:
        """Whether readiness need not wait for this model: a version serves, or none is desired."""
        if any(record.servable is not None and not record.servable.is_lost for record in self.versions.values()):
            return True
        is_unload_desired = (
            self.listing is not None and self.listing.config is not None and isinstance(self.listing.config.version_policy, NoVersions)
        )
        return is_unload_desired and not self.error

    def is_stale(self, record: VersionRecord) -> bool:
        """Whether the version of `record` serves although a newer content should: its last reload failed."""
        return record.servable is not None and bool(self.error or record.reason)

    def failures(self) -> list[str]:
        """Why desired versions do not serve, one text for each."""
        if self.error:
            return [self.error]
        broken = [record for version, record in sorted(self.versions.items()) if version in self.targets and record.reason]
        return [f"version {record.version}: {record.reason}" for record in broken]

    def vanished(self) -> list[str]:
        """Desired versions that serve but are no longer in the repository, so that they cannot be loaded again; one text for each."""
        return [
            f"version {version}: {MISSING_REASON}; what is loaded of it goes on serving"
            for version, target in sorted(self.targets.items())
            if target.generation is None and (known := self.versions.get(version)) is not None and known.servable is not None
        ]

    def index(self) -> Iterator[IndexEntry]:
        """This model's lines of the repository index."""
        backend = "" if self.listing is None or self.listing.config is None else self.listing.config.backend
        name = name_of(self.name)
        key = self.name if name != self.name else ""
        if not self.versions:
            yield IndexEntry(name, None, None, self.error, backend, key)
        for version, record in sorted(self.versions.items()):
            used = record.servable.config.backend if record.servable is not None else backend
            yield IndexEntry(name, version, record.state, self._reason(record), used, key)

    def _reason(self, record: VersionRecord) -> str:
        match record.state:
            case VersionState.READY:
                trouble = self.error or record.reason
                return f"reload FAILED: {trouble}" if trouble else ""
            case VersionState.FAILED:
                return record.servable.outage if record.servable is not None else record.reason
            case VersionState.UNLOADED:
                # The model's error is listed with the versions that serve, if there are any.
                return UNLOADED_REASON if self.ready_versions() else self.error or UNLOADED_REASON
            case _:
                return ""
