"""`ModelManager`: reconciles the served versions with the desired state. Only the reconciler changes the state of a version.

Each event (a scan, an explicit load, an unload) changes only the `DesiredState` of a model; the `Reconciler` does the rest. Explicit loads
and unloads of one model run one after the other. Different models never wait for each other, except for a load slot.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import InvalidRequest, ModelLoadError, Unavailable
from stoker.server.config.ensemble import reject_namespaces
from stoker.server.core.model_config import ListedModel, LoadOverrides
from stoker.server.core.model_key import model_key, name_of
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.core.tasks import in_daemon_thread
from stoker.server.lifecycle.dependencies import steps_of
from stoker.server.lifecycle.desired_state import DesiredState
from stoker.server.lifecycle.listing import ModelListing, ModelSource, RepositorySnapshot, apply_overrides, check_overrides, split_files
from stoker.server.lifecycle.loader import Loader
from stoker.server.lifecycle.model_list import ListedModels, ListFollower, ModelList
from stoker.server.lifecycle.model_locks import SHUTTING_DOWN, ModelLocks
from stoker.server.lifecycle.namespaces import ambiguity
from stoker.server.lifecycle.reconciler import NOT_POLLED
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.resolver import Resolver
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import MODEL_NAME_RULE, ControlMode, LifecycleSettings, is_model_name, shown
from stoker.server.lifecycle.table import ModelRecord
from stoker.server.lifecycle.watch import RepositoryWatcher, SettleFilter
from stoker.server.observability.recorder import ServerRecorder

log = logging.getLogger("stoker.lifecycle")


ALL_MODELS = "*"
CONTROL_REJECTED = "explicit model load / unload is not allowed if polling is enabled"
REFRESH_REJECTED = "the model repository is not polled"
CONTROL_REJECTED_NONE = "the list of models is fixed: the server was started to load it once"
NO_LIST = "this server serves a model repository, not a list of models: start it with --model_config_file or --model_name"


class ModelManager:
    """Loads, serves and unloads models. Confined to: the event loop."""

    def __init__(
        self,
        repository: ModelSource,
        loader: Loader,
        recorder: ServerRecorder,
        clock: Clock,
        settings: LifecycleSettings,
        *,
        watch: bool = True,
    ) -> None:
        """`watch` False: only `rescan` scans the repository again."""
        self._repository = repository
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        #: The repositories of the models' namespaces; None: there are no namespaces.
        self._spaces = repository if isinstance(repository, ModelRepository) and repository.has_namespaces else None
        self._desired = DesiredState(loader, recorder, clock, settings, () if self._spaces is None else self._spaces.roots)
        self._table: Mapping[str, ModelRecord] = self._desired.records
        self._names = self._desired.names
        #: See `Resolver.resolve`. Its own method, without one around it: each request needs it.
        self.resolve: Callable[[str, int | None], Servable] = Resolver(self._names.unique, self._names.ambiguity).resolve
        #: As `resolve`, for the key of a model.
        self.resolve_key: Callable[[str, int | None], Servable] = Resolver(self._desired.records).resolve
        self._settle_filter = SettleFilter(round(settings.settle_s * 1e9))
        self._reconciler = self._desired.reconciler
        self._list: ModelList | None = None
        if isinstance(repository, ListedModels):
            follower = ListFollower(begin=self._begin_list, failures=self._list_failures, ready=self.ready_versions)
            self._list = ModelList(repository, follower, labels_for_unavailable=settings.labels_for_unavailable)
        self._scanning = asyncio.Lock()
        self._locks = ModelLocks()
        self._serial = 0
        self._has_started = False
        self._is_initial_over = False
        self._is_stopping = False
        self._watcher: RepositoryWatcher | None = None
        if watch and settings.control_mode is not ControlMode.NONE:
            self._watcher = RepositoryWatcher(
                repository.roots, self.rescan, poll_interval_s=settings.poll_interval_s, settle_s=settings.settle_s
            )

    # ---- start and stop ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Scans the repository, begins the initial loads (`wait_initial` waits for them) and begins to watch the repository.

        Raises:
            RepositoryUnreadable: a root cannot be read, or is not a repository.
        """
        snapshot = await in_daemon_thread("scan", self._repository.scan)
        self._settle_filter.start(snapshot)
        self._has_started = True
        named = self._settings.load_models
        is_all = self._settings.control_mode is not ControlMode.EXPLICIT or ALL_MODELS in named
        if is_all:
            self._desired.begin(snapshot, snapshot.models)
        else:
            self._desired.begin(snapshot, *self._named_at_start(snapshot, named))
        if self._watcher is not None:
            self._locks.begin(self._watcher.run())

    def _named_at_start(self, snapshot: RepositorySnapshot, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        """The keys of the models to load at start, and why a name among them has none."""
        if self._spaces is None:
            return list(names), {}
        by_name: dict[str, list[str]] = {}
        for key in snapshot.models:
            by_name.setdefault(name_of(key), []).append(key)
        found = {name: by_name.get(name, [name]) for name in names}
        reasons = {name: ambiguity(name, keys, self._spaces.roots) for name, keys in found.items() if len(keys) > 1}
        return [keys[0] if len(keys) == 1 else name for name, keys in found.items()], reasons

    async def wait_initial(self) -> None:
        """Returns when every load that `start` began has succeeded or failed.

        It does not wait for slow loads, unless the process is to exit when a load fails (`exit_on_error`).
        """
        records = list(self._table.values())
        await (self._reconciler.loads_end(records) if self._settings.exit_on_error else self._reconciler.quick_loads_end(records))
        self._is_initial_over = True

    def failed_models(self) -> list[str]:
        """By name, the desired models of which a version failed to load."""
        return [name for name, record in sorted(self._table.items()) if record.is_required and record.failures()]

    @property
    def is_busy(self) -> bool:
        """Whether an explicit load or unload runs, including those whose caller was cancelled."""
        return self._locks.is_busy

    @property
    def must_exit(self) -> bool:
        """Whether a model failed to load at start and `exit_on_error` is set."""
        return self._settings.exit_on_error and self._is_initial_over and bool(self.failed_models())

    def abandon(self, why: str) -> None:
        """Fails every request in flight with UNAVAILABLE and the text `why`, at the end of the exit timeout."""
        for servable in [known.servable for record in self._table.values() for known in record.versions.values() if known.servable]:
            servable.abandon(why)
        self._reconciler.abandon(why)

    async def stop(self, timeout_s: float) -> None:
        """Cancels loads, takes every version out of service, and waits up to `timeout_s` for the requests that hold one.

        Versions that are still held after that are closed; their requests fail. All files of loads and versions are removed.
        """
        self._is_stopping = True
        records = list(self._table.values())
        for record in records:
            # An ensemble that is no longer desired does not wait for its steps.
            record.targets = {}
        for record in records:
            self._desired.remove_desired(record)
        tasks = self._locks.give_up()
        await self._reconciler.finish(timeout_s)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    # ---- questions -----------------------------------------------------------------------------------------------------------------

    def ready_versions(self, name: str) -> tuple[int, ...]:
        """READY versions of a model, ascending; empty also for an unknown one."""
        record = self._names.unique.get(name)
        return () if record is None else record.ready_versions()

    def served(self) -> list[tuple[str, int]]:
        """The key and the number of each loaded version, sorted; without models of which no version is READY."""
        ready = (record for _, record in sorted(self._table.items()) if any(entry.state is VersionState.READY for entry in record.index()))
        return [(record.name, version) for record in ready for version in record.ready_versions()]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of models by the index of the repository; empty: there are none."""
        return () if self._spaces is None else tuple(map(str, self._spaces.roots))

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model with the operator's label `label`; None: there is no such label."""
        return None if self._list is None else self._list.labelled_version(name, label)

    def is_ready(self) -> bool:
        """Whether every required model serves (strict), or the initial loads except slow ones have ended (not strict).

        False while stopping.
        """
        if self._is_stopping or not self._has_started:
            return False
        if not self._settings.strict_readiness:
            return self._is_initial_over
        return all(record.is_satisfied() for record in self._table.values() if record.is_required)

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Whether that version (None: any) is READY; False also for an unknown model."""
        record = self._names.unique.get(name)
        servable = None if record is None else record.serving.get(version)
        return servable is not None and not servable.outage

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Every version in the repository or in service, sorted by name and version."""
        entries: list[IndexEntry] = []
        for name in sorted({*self._table, *self._desired.on_disk.models}):
            entries.extend((self._table.get(name) or ModelRecord(name)).index())
        return [entry for entry in entries if entry.state is VersionState.READY] if ready_only else entries

    # ---- what is wanted ------------------------------------------------------------------------------------------------------------

    async def rescan(self) -> bool:
        """Scans the repository; under polling, begins the resulting loads and unloads.

        Returns:
            Whether all changes have settled; if not, scan again after the settling time.
        """
        async with self._scanning:
            seen = await in_daemon_thread("scan", self._repository.scan)
            if self._is_stopping:
                return True
            if self._settings.control_mode is not ControlMode.POLL:
                self._desired.observe(seen)
                return True
            snapshot, is_settled = self._settle_filter.settle(seen, self._clock.now_ns())
            self._desired.take(snapshot)
            return is_settled

    async def replace_models(self, models: Sequence[ListedModel], *, is_trusted: bool) -> None:
        """Replaces the list of models by `models`; returns when the new models serve. The work continues if the caller is cancelled.

        Models in both lists continue to serve. A label moves once its version serves.

        Args:
            models: The new list.
            is_trusted: Whether it comes from the operator; see `ListedModels.admit`.

        Raises:
            Unavailable: the server uses no list of models, or its control mode forbids changes. InvalidRequest, Forbidden: the list is
                rejected.
            ModelLoadError: a model does not load, or a label belongs to a version that does not serve; the rest of the list takes effect.
        """
        if self._list is None:
            raise Unavailable(NO_LIST)
        if self._settings.control_mode is ControlMode.NONE:
            raise Unavailable(CONTROL_REJECTED_NONE)
        if self._is_stopping:
            raise Unavailable(SHUTTING_DOWN)
        await self._locks.run_shielded(self._list.replace(models, is_trusted=is_trusted))

    async def _begin_list(self) -> None:
        async with self._scanning:
            seen = await in_daemon_thread("scan", self._repository.scan)
            # An explicit load states that the files are complete: no settling time, and the response can report the result.
            self._settle_filter.restart(seen)
            self._desired.take(seen)

    async def _list_failures(self, names: Iterable[str]) -> list[str]:
        records = [self._table[name] for name in names if name in self._table]
        await self._reconciler.loads_end(records)
        return [f"model {record.name}: {failure}" for record in records for failure in record.failures()]

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        """Loads or reloads a model; returns when its desired versions are READY and no new request reaches an old one.

        The load continues if the caller is cancelled. Loads and unloads of one model are done in the order they came.

        Raises:
            Unavailable: the control mode does not allow it, or the server is shutting down.
            InvalidRequest: the name or an override's file name is not allowed, or several repositories have a model of the name.
            ModelLoadError: the load failed; versions that serve continue to serve.
        """
        self._check_control(name)
        check_overrides(name, overrides)
        key = await self._key_to_load(name)
        await self._locks.run_locked(key, lambda: self._load_now(name, key, overrides))

    async def refresh(self, name: str) -> None:
        """Scans one model at once; returns when the versions in the repository serve. For a caller that has finished changing the files.

        There is no settling time, and failed versions are loaded again. The work continues if the caller is cancelled.

        Raises:
            Unavailable: the repository is not polled, or the server is shutting down. InvalidRequest: the name is not allowed.
            ModelLoadError: a desired version does not serve; versions that serve continue to serve.
        """
        if self._settings.control_mode is not ControlMode.POLL:
            raise Unavailable(REFRESH_REJECTED)
        self._check_may_change(name)
        key = await self._key_to_load(name)
        await self._locks.run_locked(key, lambda: self._refresh_now(name, key))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unloads a model; returns once no new request reaches it. No effect on a model that is not loaded.

        Args:
            name: The model.
            unload_dependents: Whether the models of an ensemble's steps are unloaded too, if they were loaded for ensembles only and no
                other ensemble needs them.

        Raises:
            Unavailable: the control mode does not allow it, or the server is shutting down. InvalidRequest: the name is not allowed, or
                several models have it.
        """
        self._check_control(name)
        await self._unload_key(self._names.key(name) or name, unload_dependents)

    async def _unload_key(self, key: str, unload_dependents: bool) -> None:
        record = self._table.get(key)
        needed = () if record is None else steps_of(record.listing)
        await self._locks.run_locked(key, lambda: self._unload_now(key))
        for step in needed if unload_dependents else ():
            found = self._table.get(step)
            if found is not None and found.is_implied and not self._desired.is_needed(step):
                await self._unload_key(step, unload_dependents=True)

    async def _key_to_load(self, name: str) -> str:
        """The key of the model `name` of the repositories.

        Raises:
            InvalidRequest: several repositories have a model of this name.
        """
        if self._spaces is None:
            return name
        keys = await in_daemon_thread("find", partial(self._spaces.keys, name))
        if len(keys) > 1:
            raise InvalidRequest(ambiguity(name, keys, self._spaces.roots))
        return keys[0] if keys else self._names.key(name) or model_key(name, 0)

    def _check_control(self, name: str) -> None:
        if self._settings.control_mode is not ControlMode.EXPLICIT:
            raise Unavailable(CONTROL_REJECTED)
        self._check_may_change(name)

    def _check_may_change(self, name: str) -> None:
        if self._is_stopping:
            raise Unavailable(SHUTTING_DOWN)
        if not is_model_name(name):
            raise InvalidRequest(f"{shown(name)} is not a model name: expected {MODEL_NAME_RULE}")

    async def _load_now(self, name: str, key: str, overrides: LoadOverrides) -> None:
        # In threads: a configuration may be long, and the folder may be on a slow file system.
        found = await in_daemon_thread("find", lambda: self._repository.find(key))
        self._desired.observe_model(key, found)
        try:
            listing = await in_daemon_thread("configure", lambda: self._configured(name, found, overrides))
        except ModelLoadError as error:
            self._recorder.load_failed(key, None)
            raise ModelLoadError(f"failed to load '{name}', {error.message}") from error
        if listing is None:
            raise ModelLoadError(f"failed to load '{name}', {NOT_POLLED}")
        await self._load_steps(listing, {key})
        self._serial += 1
        record = self._desired.record(key)
        record.is_implied = False
        self._desired.set_desired(record, listing, self._serial, split_files(overrides.files))
        await self._reconciler.loads_end([record])
        failures = [*record.failures(), *record.vanished()]
        if failures:
            self._desired.collect_garbage(record)
            raise ModelLoadError(f"failed to load '{name}', {'; '.join(failures)}")
        record.is_required = True

    def _configured(self, name: str, found: ModelListing | None, overrides: LoadOverrides) -> ModelListing | None:
        """The listing to load; blocks. Raises as `apply_overrides`."""
        listing = apply_overrides(name, found, overrides, self._repository.roots)
        if listing is None or listing is found:
            return listing
        if self._spaces is not None:
            return self._spaces.in_namespace(listing)
        if listing.config is not None:
            reject_namespaces(listing.config)
        return listing

    async def _load_steps(self, listing: ModelListing, above: set[str]) -> None:
        """Makes the models desired that an ensemble needs and that do not serve, as Triton does. A reload changes no model that serves."""
        for step in steps_of(listing):
            record = self._table.get(step)
            if step in above or (record is not None and record.ready_versions()):
                continue
            found = await in_daemon_thread("find", partial(self._repository.find, step))
            self._desired.observe_model(step, found)
            if found is None:
                continue  # the ensemble reports it
            await self._load_steps(found, above | {step})
            is_new = record is None or not record.targets
            record = self._desired.set_model(step, found)
            record.is_implied = is_new or record.is_implied

    async def _refresh_now(self, name: str, key: str) -> None:
        async with self._scanning:
            found = await in_daemon_thread("find", lambda: self._repository.find(key))
            if self._is_stopping:
                raise Unavailable(SHUTTING_DOWN)
            self._settle_filter.accept(key, found)
            record = self._desired.set_model(key, found)
        if found is None or (found.config is not None and not found.versions):
            return  # no version is desired
        await self._reconciler.loads_end([record])
        if failures := record.failures():
            raise ModelLoadError(f"model '{name}' failed to load: {'; '.join(failures)}")

    async def _unload_now(self, name: str) -> None:
        record = self._table.get(name)
        if record is not None:
            self._desired.remove_desired(record)
            await self._reconciler.unloads_end(name, self._settings.unload_grace_s)
