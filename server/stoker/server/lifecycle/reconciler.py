"""`Reconciler`: runs the actions of the plan for one model at a time, and publishes their results.

Loads run as tasks. All other actions run at once on the event loop, so that no record needs a lock. The plan is computed again when a load
ends: an old version is then unloaded because the new one serves.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.server.lifecycle.dependencies import ensemble_of, step_models
from stoker.server.lifecycle.loader import BackendRaised, Loader, VersionSource
from stoker.server.lifecycle.reconcile import CancelLoad, Forget, Generation, Load, Unload, plan
from stoker.server.lifecycle.servable import Retirement, Servable
from stoker.server.lifecycle.settings import MAX_LATE_LOADS, MAX_REASON_LENGTH, LifecycleSettings
from stoker.server.lifecycle.table import MISSING_REASON, Blocked, Loading, LoadSlots, ModelRecord, Target, VersionRecord
from stoker.server.observability.recorder import ServerRecorder

log = logging.getLogger("stoker.lifecycle")

NOT_POLLED = "failed to poll from model repository"
#: Interval of the check for loads that have become slow, seconds.
_LOOK_S = 0.5


class _LoadTimeout(ModelLoadError):
    """A load was cancelled after its timeout; another attempt would run beside its thread."""


class Reconciler:
    """Brings records to their targets. Confined to: the event loop."""

    def __init__(
        self,
        loader: Loader,
        recorder: ServerRecorder,
        clock: Clock,
        settings: LifecycleSettings,
        changed: Callable[[ModelRecord], None],
        records: Mapping[str, ModelRecord],
        known: Callable[[], Iterable[str]],
    ) -> None:
        """Makes a reconciler.

        Args:
            loader: Loads versions.
            recorder: Receives the states.
            clock: Measures loads.
            settings: Bounds and retries.
            changed: Called after every change of a record, including those at the end of a load or an unload.
            records: All records by name, for the models that ensembles need.
            known: The names of all models of the repository.
        """
        self._loader = loader
        self._recorder = recorder
        self._clock = clock
        self._retries = settings.load_retries
        self._slots = LoadSlots(settings.load_concurrency)
        self._timeout_s = settings.load_timeout_s or None
        self._late: set[asyncio.Future[Servable]] = set()
        self._retirement = Retirement(settings.drain_timeout_s)
        self._changed = changed
        self._loads: set[asyncio.Task[None]] = set()
        self._records = records
        self._known = known
        self._ensembles: dict[str, ModelRecord] = {}

    def reconcile(self, record: ModelRecord) -> None:
        """Computes and carries out the plan. Called whenever the desired or the observed state has changed; idempotent."""
        blocked = self._follow_steps(record)
        for version in {*record.targets, *record.versions}:
            self._compare(record.name, record.version(version), record.targets.get(version))
        self._block(record, blocked)
        for action in plan([known.status for known in record.versions.values()], {} if blocked else record.desired):
            known = record.version(action.version)
            match action:
                case Load(version, generation):
                    self._begin_load(record, known, record.targets[version], generation)
                case CancelLoad():
                    _cancel_load(known)
                case Unload():
                    self._unload(record, known)
                case Forget():
                    known.failed, known.reason = None, ""
        self._report(record)
        self._note_change(record)

    async def loads_end(self, records: Iterable[ModelRecord]) -> None:
        """Returns when no load of `records` runs any more."""
        records = self._with_steps(records)
        while tasks := [task for record in records for task in record.loads()]:
            await asyncio.wait(tasks)

    async def quick_loads_end(self, records: Iterable[ModelRecord]) -> None:
        """Waits as `loads_end` does, but not for loads that have become slow."""
        records = self._with_steps(records)
        while tasks := [task for record in records for task in record.loads(with_slow=False)]:
            await asyncio.wait(tasks, timeout=_LOOK_S)

    async def unloads_end(self, name: str, timeout_s: float) -> None:
        """Returns when all unloaded versions of model `name` are closed, or after `timeout_s`."""
        await self._retirement.wait_for(name, timeout_s)

    def abandon(self, why: str) -> None:
        """As `Retirement.abandon`."""
        self._retirement.abandon(why)

    async def finish(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for cancelled loads and for unloads; then closes the versions that are still held.

        REQUIRES: no version is desired.
        """
        if self._loads:
            await asyncio.gather(self._retirement.finish(timeout_s), asyncio.wait(list(self._loads), timeout=timeout_s))
        # The result of a cancelled load may have been retired since the first round.
        await self._retirement.finish(timeout_s)

    def fail_model(self, record: ModelRecord, error: str) -> None:
        """Records why the model as a whole cannot be loaded; its versions that serve continue to serve."""
        if record.error != error:
            log.error(
                "model '%s' cannot be loaded%s: %s",
                record.name,
                " (what is loaded goes on serving)" if record.ready_versions() else "",
                error,
                extra={"model": record.name},
            )
            self._recorder.load_failed(record.name, None)
        record.error = error
        self._report(record)
        self._tell_ensembles(record)

    def forget(self, record: ModelRecord, version: int) -> None:
        """Drops the record of a version without any state left."""
        del record.versions[version]
        self._recorder.forget(record.name, version)

    def _with_steps(self, records: Iterable[ModelRecord]) -> list[ModelRecord]:
        """The records, and those of the models that ensembles among them need."""
        found = {record.name: record for record in records}
        waiting = list(found.values())
        while waiting:
            ensemble = ensemble_of(waiting.pop())
            for step in () if ensemble is None else ensemble.steps:
                record = self._records.get(step.key)
                if record is not None and found.setdefault(record.name, record) is record and record not in waiting:
                    waiting.append(record)
        return list(found.values())

    def _follow_steps(self, record: ModelRecord) -> Blocked | None:
        """Adds to the targets of an ensemble what its steps run now; returns why it cannot serve, if it cannot."""
        ensemble = ensemble_of(record)
        if ensemble is None:
            self._ensembles.pop(record.name, None)
            return None
        self._ensembles[record.name] = record
        found = step_models(record.name, ensemble, self._records, self._known)
        if isinstance(found, Blocked):
            return found
        signatures = tuple(model.signature for model in found)
        for version, target in record.targets.items():
            if target.generation is not None and target.source is not None:
                generation, source = replace(target.generation, steps=signatures), replace(target.source, steps=found)
                record.targets[version] = replace(target, generation=generation, source=source)
        return None

    def _block(self, record: ModelRecord, blocked: Blocked | None) -> None:
        """Takes the versions of an ensemble out of service whose steps cannot run, and records the reason."""
        for version, known in record.versions.items():
            was, known.blocked = known.blocked, blocked if version in record.targets and not known.is_missing else None
            if known.blocked is None:
                if was is not None:
                    known.reason = ""
                continue
            _cancel_load(known)
            if known.servable is not None:
                self._unload(record, known)
            known.failed = None
            known.reason = "" if known.blocked.is_pending else known.blocked.reason
            facts = {"model": record.name, "version": version}
            if not known.blocked.is_pending and known.blocked != was:
                log.error("model '%s' version %d is not ready: %s", record.name, version, known.blocked.reason, extra=facts)
            elif known.blocked.is_pending and (was is None or not was.is_pending):
                log.info("model '%s' version %d waits: %s", record.name, version, known.blocked.reason, extra=facts)

    def _note_outage(self, record: ModelRecord) -> None:
        self._report(record)
        self._tell_ensembles(record)

    def _note_change(self, record: ModelRecord) -> None:
        self._changed(record)
        self._tell_ensembles(record)

    def _tell_ensembles(self, record: ModelRecord) -> None:
        """Reconciles the ensembles that need the model, if anything has changed for them."""
        if not self._ensembles:
            return
        look = record.look
        if look == record.seen:
            return
        record.seen = look
        for ensemble in list(self._ensembles.values()):
            needed = ensemble_of(ensemble)
            if needed is not None and any(step.key == record.name for step in needed.steps):
                self.reconcile(ensemble)

    def _compare(self, name: str, known: VersionRecord, target: Target | None) -> None:
        """Drops failures that no longer apply, and records that a desired version is missing."""
        if target is not None and known.failed is not None and known.failed != target.generation:
            known.failed, known.reason = None, ""
        was_missing = known.is_missing
        known.is_missing = target is not None and target.generation is None and known.servable is None
        if known.is_missing and not was_missing:
            known.reason = MISSING_REASON
            self._record_failure(name, known)
        elif was_missing and not known.is_missing:
            known.reason = ""

    def _begin_load(self, record: ModelRecord, known: VersionRecord, target: Target, generation: Generation) -> None:
        _cancel_load(known)
        loading = known.loading = Loading(generation)
        loading.task = self._start(self._load(record, known, loading, target))

    async def _load(self, record: ModelRecord, known: VersionRecord, loading: Loading, target: Target) -> None:
        """Loads one version and publishes the result. INVARIANT: no suspension between the loader's return and publishing."""
        try:
            async with self._slots.one() as slot:
                loading.slot = slot
                self._report(record)
                since_ns = self._clock.now_ns()
                servable = await self._attempt(target)
            if known.loading is loading:
                self._publish(record, known, loading, servable, (self._clock.now_ns() - since_ns) / 1e9)
            else:
                self._retirement.begin(servable)
        except ServingError as error:
            self._fail(record, known, loading, error.message, error.__cause__ if isinstance(error, BackendRaised) else None)
        except asyncio.CancelledError:
            # The caller that cancels a load has removed it from the record before; if not, the loader broke its contract.
            self._fail(record, known, loading, "the load was broken off")
            raise
        except Exception as error:  # noqa: BLE001 - a defect in a loader must be a failed version, not a load that never ends
            self._fail(record, known, loading, f"internal error: {type(error).__name__}: {error}", error)

    async def _attempt(self, target: Target) -> Servable:
        if target.error is not None or target.source is None:
            raise ModelLoadError(target.error or NOT_POLLED)
        for left in range(self._retries, -1, -1):
            try:
                return await self._within_time(target.source)
            except ServingError as error:
                if not left or isinstance(error, _LoadTimeout):
                    raise
                log.warning(
                    "model '%s' version %d failed to load, trying again: %s", target.source.name, target.source.version, error.message
                )
        raise AssertionError("the last attempt returns or raises")

    async def _within_time(self, source: VersionSource) -> Servable:
        """Loads `source` within the load timeout.

        The thread of a load cannot be interrupted: after the timeout it runs until it ends, and its result is then released.
        """
        if len(self._late) >= MAX_LATE_LOADS:
            raise ModelLoadError(f"{len(self._late)} loads that were given up have still not ended: the server must be started anew")
        loading = asyncio.ensure_future(self._loader.load(source))
        try:
            done, _ = await asyncio.wait({loading}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            self._give_up(loading, source)
            # It counts as a running load for up to another load timeout.
            done, _ = await asyncio.wait({loading}, timeout=self._timeout_s)
            self._late.update({loading} - done)
            raise
        if not done:
            self._give_up(loading, source)
            self._late.add(loading)
            raise _LoadTimeout(
                f"the load took longer than {self._timeout_s:g} s (--model-load-timeout-secs) and was given up; it cannot be interrupted, "
                "so it uses the processor and memory until it ends by itself"
            )
        return loading.result()

    def _give_up(self, loading: "asyncio.Future[Servable]", source: VersionSource) -> None:
        """Releases the result of a cancelled load when the load ends."""

        def end(ended: "asyncio.Future[Servable]") -> None:
            self._late.discard(ended)
            log.info(
                "the load that was given up of model '%s' version %d has ended; what it made is released",
                source.name,
                source.version,
                extra={"model": source.name, "version": source.version},
            )
            if not ended.cancelled() and ended.exception() is None:
                self._retirement.begin(ended.result())

        loading.cancel()
        loading.add_done_callback(end)

    def _publish(self, record: ModelRecord, known: VersionRecord, loading: Loading, servable: Servable, seconds: float) -> None:
        replaced = known.servable
        record.put_in_service(known, servable)
        servable.on_outage = lambda: self._note_outage(record)
        known.generation, known.has_served = loading.generation, True
        known.loading = known.failed = None
        known.reason = ""
        self._recorder.loaded(record.name, known.version, seconds=seconds)
        log.info(
            "model '%s' version %d is ready",
            record.name,
            known.version,
            extra={"model": record.name, "version": known.version, "seconds": seconds},
        )
        if replaced is not None:
            self._retire(record, known, replaced)
        self.reconcile(record)

    def _fail(self, record: ModelRecord, known: VersionRecord, loading: Loading, reason: str, cause: BaseException | None = None) -> None:
        if known.loading is not loading:
            return
        known.loading = None
        known.failed = loading.generation
        known.reason = reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]}..."
        self._record_failure(record.name, known, cause)
        if known.generation is not None and known.generation.steps != loading.generation.steps:
            # The ensemble that serves was checked against other models than those that its steps run now.
            self._take_out(record, known)
        self.reconcile(record)

    def _unload(self, record: ModelRecord, known: VersionRecord) -> None:
        known.failed = None
        known.reason = ""
        self._take_out(record, known)

    def _take_out(self, record: ModelRecord, known: VersionRecord) -> None:
        """Takes a version out of service."""
        servable = known.servable
        assert servable is not None
        record.put_in_service(known, None)
        known.generation = None
        log.info("model '%s' version %d is unloading", record.name, known.version, extra={"model": record.name, "version": known.version})
        self._retire(record, known, servable)

    def _retire(self, record: ModelRecord, known: VersionRecord, servable: Servable) -> None:
        """Retires a servable that is no longer in the table."""

        def gone() -> None:
            known.draining -= 1
            log.info(
                "model '%s' version %d is unloaded",
                record.name,
                servable.version,
                extra={"model": record.name, "version": servable.version},
            )
            self._report(record)
            self._note_change(record)

        known.draining += 1
        self._retirement.begin(servable, gone)

    def _report(self, record: ModelRecord) -> None:
        """Reports every state that has changed since the last report to the recorder."""
        for known in record.versions.values():
            if known.reported is not known.state:
                known.reported = known.state
                self._recorder.state(record.name, known.version, known.state)
            is_stale = record.is_stale(known)
            if known.reported_stale is not is_stale:
                known.reported_stale = is_stale
                self._recorder.reload_failed(record.name, known.version, is_stale)

    def _record_failure(self, name: str, known: VersionRecord, cause: BaseException | None = None) -> None:
        """Logs why a load failed; `cause` is an exception of a backend that the plug-in API does not allow."""
        self._recorder.load_failed(name, known.version)
        log.error(
            "model '%s' version %d failed to load%s: %s",
            name,
            known.version,
            " (the loaded one goes on serving)" if known.servable is not None else "",
            known.reason,
            extra={"model": name, "version": known.version},
            exc_info=cause,
        )

    def _start(self, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(load)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return task


def _cancel_load(known: VersionRecord) -> None:
    if known.loading is not None and known.loading.task is not None:
        known.loading.task.cancel()
        known.loading = None
