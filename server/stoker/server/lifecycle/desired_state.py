"""`DesiredState`: the versions that each model should serve, and the repository as last scanned. The `Reconciler` carries it out."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stoker.backends.api.clock import Clock
from stoker.server.core.model_config import NoVersions
from stoker.server.core.model_key import name_of
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.dependencies import ensemble_of, ordered
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot
from stoker.server.lifecycle.loader import Loader
from stoker.server.lifecycle.model_names import ModelNames
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.reconciler import NOT_POLLED, Reconciler
from stoker.server.lifecycle.settings import LifecycleSettings
from stoker.server.lifecycle.table import ModelRecord, Target
from stoker.server.observability.recorder import ServerRecorder

log = logging.getLogger("stoker.lifecycle")

EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
NO_VERSIONS = "at least one version must be available under the version policy of model '{}'"


class DesiredState:
    """The desired state of all models. Confined to: the event loop.

    Attributes:
        records: By key, every model that was desired at least once. Only this class and the reconciler write it.
        names: The models of `records` by the names that clients use.
        on_disk: The repository as last scanned.
        reconciler: Carries out the changes.
    """

    def __init__(
        self, loader: Loader, recorder: ServerRecorder, clock: Clock, settings: LifecycleSettings, roots: Sequence[Path] = ()
    ) -> None:
        """Starts without models. `roots`: the repositories, if each is a namespace; else empty."""
        self.records: dict[str, ModelRecord] = {}
        self.names = ModelNames(self.records, roots)
        self.on_disk = RepositorySnapshot()
        self.reconciler = Reconciler(
            loader, recorder, clock, settings, self.collect_garbage, self.records, lambda: {*self.records, *self.on_disk.models}
        )

    def begin(self, snapshot: RepositorySnapshot, names: Iterable[str], reasons: Mapping[str, str] = EMPTY) -> None:
        """Marks the models `names` of the first `snapshot` as required, whether they exist or not, and those that ensembles among them
        need. `reasons` has why a name is not in the snapshot.
        """
        _log_notes(snapshot.notes)
        self.on_disk = snapshot
        named = dict.fromkeys(names)
        for name in ordered(named, snapshot.models):
            record = self.record(name)
            record.is_required, record.is_implied = True, name not in named
            if name in snapshot.models:
                self.set_desired(record, snapshot.models[name])
            else:
                self.reconciler.fail_model(record, reasons.get(name, NOT_POLLED))

    def take(self, snapshot: RepositorySnapshot) -> None:
        """Makes `snapshot` the desired state of every model."""
        _log_notes(set(snapshot.notes) - set(self.on_disk.notes))
        self.on_disk = snapshot
        for name in ordered(snapshot.models, snapshot.models):
            listing = snapshot.models[name]
            record = self.record(name)
            record.is_required = True
            if record.listing is None or record.listing.mark != listing.mark:
                self.set_desired(record, listing)
        for name in self.records.keys() - snapshot.models.keys():
            self.records[name].listing = None
            self.remove_desired(self.records[name])

    def set_model(self, name: str, found: ModelListing | None) -> ModelRecord:
        """Makes the listing of one model (None: it does not exist) its desired state. Versions that failed are loaded again."""
        self.observe_model(name, found)
        record = self.record(name)
        record.listing = found
        if found is None:
            self.remove_desired(record)
            return record
        record.is_required = True
        for known in record.versions.values():
            if known.failed is not None:
                known.failed, known.reason = None, ""
        self.set_desired(record, found)
        return record

    def observe(self, snapshot: RepositorySnapshot) -> None:
        """Records `snapshot` as observed; the desired state does not change."""
        self.on_disk = snapshot
        for record in list(self.records.values()):
            self.collect_garbage(record)

    def observe_model(self, name: str, found: ModelListing | None) -> None:
        """Records the listing of one model (None: it does not exist) as observed; the desired state does not change."""
        models = {other: listing for other, listing in self.on_disk.models.items() if other != name}
        self.on_disk = RepositorySnapshot(models if found is None else {**models, name: found}, self.on_disk.notes)

    def record(self, name: str) -> ModelRecord:
        """The record of a model; made if there is none."""
        record = self.records.get(name)
        if record is None:
            record = self.records[name] = ModelRecord(name)
            self.names.add(name)
        return record

    def set_desired(
        self, record: ModelRecord, listing: ModelListing, serial: int = 0, files: Mapping[int, Mapping[str, bytes]] | None = None
    ) -> None:
        """Makes `listing` the desired state of the model and reconciles; a `serial` above 0 also reloads versions that did not change."""
        record.listing = listing
        config = listing.config
        if config is None:
            # The desired state is unknown, so the previous one remains.
            self.reconciler.fail_model(record, listing.error or NOT_POLLED)
            return
        desired = desired_versions(config.version_policy, listing.versions)
        if not desired and not isinstance(config.version_policy, NoVersions):
            self.reconciler.fail_model(record, NO_VERSIONS.format(name_of(record.name)))
            if serial:
                return
        else:
            record.error = ""
        record.targets = {version: Target.of(listing, version, serial, (files or {}).get(version, {})) for version in sorted(desired)}
        self.reconciler.reconcile(record)

    def remove_desired(self, record: ModelRecord) -> None:
        """Makes the desired state of the model empty and reconciles."""
        record.is_required = record.is_implied = False
        record.targets = {}
        record.error = ""
        self.reconciler.reconcile(record)

    def is_needed(self, name: str) -> bool:
        """Whether a desired ensemble has the model `name` as a step."""
        ensembles = (ensemble_of(record) for record in self.records.values())
        return any(step.key == name for ensemble in ensembles if ensemble is not None for step in ensemble.steps)

    def collect_garbage(self, record: ModelRecord) -> None:
        """Drops the records of models that neither serve nor are in the repository."""
        on_disk = self.on_disk.models.get(record.name)
        held = () if on_disk is None else on_disk.versions
        for version, known in list(record.versions.items()):
            if known.state is VersionState.UNLOADED and not (version in held and known.has_served):
                self.reconciler.forget(record, version)
        if not record.versions and not record.is_required and on_disk is None and self.records.get(record.name) is record:
            del self.records[record.name]
            self.names.remove(record.name)


def _log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        log.info("%s", note)
