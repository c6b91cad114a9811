"""A loader whose loads end when a test decides, servables that count, a repository in memory, and a recorder that records."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import cast

from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.server.config.pbtxt import empty_config
from stoker.server.core.model_config import LatestVersions, VersionPolicy
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot, VersionListing
from stoker.server.lifecycle.loader import VersionSource
from stoker.server.lifecycle.servable import Servable
from stoker.server.observability.recorder import VersionRecorder


async def turn(times: int = 30) -> None:
    """Runs the event loop until everything that needs no time has happened."""
    for _ in range(times):
        await asyncio.sleep(0)


class FakeServable:
    """The servable of a fake load. Borrowed like the real one; closed by `drained` or `close`."""

    outage = ""
    is_lost = False

    def __init__(self, source: VersionSource) -> None:
        self.source = source
        self.name = source.name
        self.key = source.key or source.name
        self.version = source.version
        self.config = SimpleNamespace(backend="fake", metric_tags={})
        self.borrowers = 0
        self.retired = 0
        self.closed = 0
        self.close_error: Exception | None = None
        self._idle = asyncio.Event()

    def borrow(self) -> "FakeServable":
        return self

    async def __aenter__(self) -> "FakeServable":
        self.borrowers += 1
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.borrowers -= 1
        if self.retired and not self.borrowers:
            self._idle.set()

    def retire(self) -> None:
        self.retired += 1
        if not self.borrowers:
            self._idle.set()

    async def drained(self) -> None:
        assert self.retired, "drained before retire"
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


@dataclass(eq=False)
class PendingLoad:
    """A load that waits for the test."""

    source: VersionSource
    outcome: "asyncio.Future[FakeServable]"

    def finish(self) -> FakeServable:
        servable = FakeServable(self.source)
        self.outcome.set_result(servable)
        return servable

    def fail(self, error: BaseException | str = "broken") -> None:
        self.outcome.set_exception(ModelLoadError(error) if isinstance(error, str) else error)


class FakeLoader:
    """A `Loader`. With `holds` set, loads wait in `pending`; else they end at once, as `errors` (by name and version) says.

    Attributes:
        loaded: Every servable given out.
        sources: Every source asked for, in order.
        cancelled: Sources whose load was broken off.
    """

    def __init__(self, *, holds: bool = False) -> None:
        self.holds = holds
        self.errors: dict[tuple[str, int], Exception] = {}
        self.pending: list[PendingLoad] = []
        self.loaded: list[FakeServable] = []
        self.sources: list[VersionSource] = []
        self.cancelled: list[VersionSource] = []
        self._arrived = asyncio.Event()

    async def arrived(self, count: int = 1) -> None:
        """Waits until `count` loads wait for the test."""
        while len(self.pending) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def load(self, source: VersionSource) -> Servable:
        self.sources.append(source)
        servable = await self._hold(source) if self.holds else self._at_once(source)
        self.loaded.append(servable)
        return cast("Servable", servable)

    def find(self, name: str, version: int) -> PendingLoad:
        """The waiting load of that version."""
        return next(load for load in self.pending if (load.source.name, load.source.version) == (name, version))

    def _at_once(self, source: VersionSource) -> FakeServable:
        error = self.errors.get((source.name, source.version))
        if error is not None:
            raise error
        return FakeServable(source)

    async def _hold(self, source: VersionSource) -> FakeServable:
        load = PendingLoad(source, asyncio.get_running_loop().create_future())
        self.pending.append(load)
        self._arrived.set()
        try:
            return await load.outcome
        except asyncio.CancelledError:
            self.cancelled.append(source)
            raise
        finally:
            self.pending.remove(load)


@dataclass
class FakeModel:
    """A model of a `FakeRepository`: version -> fingerprint, or an error."""

    versions: dict[int, str] = field(default_factory=lambda: {1: "a"})
    policy: VersionPolicy = field(default_factory=LatestVersions)
    config: str = "c"
    error: str | None = None
    version_errors: dict[int, str] = field(default_factory=dict)


class FakeRepository:
    """A repository with a dict of models that the test changes."""

    def __init__(self, models: Mapping[str, FakeModel] | None = None) -> None:
        self.roots = (Path("repository"),)
        self.models: dict[str, FakeModel] = dict(models or {})
        self.scans = 0
        self.gate = threading.Event()
        self.gate.set()

    def check_roots(self) -> None:
        """There is always something to read."""

    def scan(self) -> RepositorySnapshot:
        assert self.gate.wait(10), "the test never opened the gate"
        self.scans += 1
        return RepositorySnapshot({name: self._listing(name, model) for name, model in sorted(self.models.items())})

    def find(self, name: str) -> ModelListing | None:
        assert self.gate.wait(10), "the test never opened the gate"
        model = self.models.get(name)
        return None if model is None else self._listing(name, model)

    def _listing(self, name: str, model: FakeModel) -> ModelListing:
        directory = self.roots[0] / name
        versions = {
            v: VersionListing(version=v, directory=directory / str(v), fingerprint=mark, error=model.version_errors.get(v))
            for v, mark in model.versions.items()
        }
        config = None if model.error else replace(empty_config(name), version_policy=model.policy)
        return ModelListing(
            name=name, directory=directory, root_index=0, config=config, error=model.error, fingerprint=model.config, versions=versions
        )


class FakeRecorder:
    """A `ServerRecorder` that records its calls.

    Attributes:
        states: Last state by (name, version); gone once forgotten.
        history: Every state, in order.
        loads: Seconds of every good load.
        failures: Every failed load.
        stale: Versions that serve although their last reload failed.
    """

    def __init__(self) -> None:
        self.states: dict[tuple[str, int], VersionState] = {}
        self.history: list[tuple[str, int, VersionState]] = []
        self.loads: list[tuple[str, int, float]] = []
        self.warmups: list[tuple[str, int, int]] = []
        self.failures: list[tuple[str, int | None]] = []
        self.stale: set[tuple[str, int]] = set()

    def version(self, name: str, version: int, tags: Mapping[str, str]) -> VersionRecorder:
        raise AssertionError("the manager counts no requests")

    def state(self, name: str, version: int, state: VersionState) -> None:
        self.states[name, version] = state
        self.history.append((name, version, state))

    def loaded(self, name: str, version: int, *, seconds: float) -> None:
        self.loads.append((name, version, seconds))

    def warmed(self, name: str, version: int, *, duration_ns: int) -> None:
        self.warmups.append((name, version, duration_ns))

    def reload_failed(self, name: str, version: int, is_failed: bool) -> None:
        if is_failed:
            self.stale.add((name, version))
        else:
            self.stale.discard((name, version))

    def load_failed(self, name: str, version: int | None) -> None:
        self.failures.append((name, version))

    def forget(self, name: str, version: int) -> None:
        self.states.pop((name, version), None)


def error_of(outcome: object) -> str:
    """The message of a `ServingError` that `asyncio.gather` returned."""
    assert isinstance(outcome, ServingError), outcome
    return outcome.message
