"""`DesiredState`: what is wanted of every model. Whatever changes it begins at once what follows from that.

It stands between the manager, which decides why something changes (a scan, a load, an unload), and the `Reconciler`, which makes it so.
"""

import logging
from collections.abc import Iterable, Mapping

from stoker.backends.api.clock import Clock
from stoker.server.core.model_config import NoVersions
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot
from stoker.server.lifecycle.loader import Loader
from stoker.server.lifecycle.reconciler import NOT_POLLED, Reconciler
from stoker.server.lifecycle.settings import LifecycleSettings
from stoker.server.lifecycle.table import ModelRecord, Target
from stoker.server.lifecycle.version_policy import desired_versions
from stoker.server.observability.recorder import ServerRecorder

log = logging.getLogger("stoker.lifecycle")

NO_VERSIONS = "at least one version must be available under the version policy of model '{}'"


class DesiredState:
    """Confined to: the event loop.

    Attributes:
        records: The table, by model name: every model that was asked for at least once. Written here and by the reconciler only.
        on_disk: What the repository held when it was last looked at.
        reconciler: Does what follows; tells when it is done.
    """

    def __init__(self, loader: Loader, recorder: ServerRecorder, clock: Clock, settings: LifecycleSettings) -> None:
        """Begins with no model at all."""
        self.records: dict[str, ModelRecord] = {}
        self.on_disk = RepositorySnapshot()
        self.reconciler = Reconciler(loader, recorder, clock, settings, self.collect_garbage)

    def begin(self, snapshot: RepositorySnapshot, names: Iterable[str]) -> None:
        """Makes the models `names` of the first `snapshot` required, there or not."""
        _log_notes(snapshot.notes)
        self.on_disk = snapshot
        for name in names:
            record = self.records[name] = ModelRecord(name, is_required=True)
            if name in snapshot.models:
                self.set_desired(record, snapshot.models[name])
            else:
                self.reconciler.fail_model(record, NOT_POLLED)

    def take(self, snapshot: RepositorySnapshot) -> None:
        """Makes `snapshot` what is wanted, of every model."""
        _log_notes(set(snapshot.notes) - set(self.on_disk.notes))
        self.on_disk = snapshot
        for name, listing in snapshot.models.items():
            record = self.record(name)
            record.is_required = True
            if record.listing is None or record.listing.mark != listing.mark:
                self.set_desired(record, listing)
        for name in self.records.keys() - snapshot.models.keys():
            self.records[name].listing = None
            self.remove_desired(self.records[name])

    def set_model(self, name: str, found: ModelListing | None) -> ModelRecord:
        """Makes what was found of one model (None: it is not there) what is wanted of it. What has failed before is tried again."""
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
        """Takes note of `snapshot`; what is wanted stays as it was."""
        self.on_disk = snapshot
        for record in list(self.records.values()):
            self.collect_garbage(record)

    def observe_model(self, name: str, found: ModelListing | None) -> None:
        """Takes note of one model as it was found; None: it is not there. What is wanted stays as it was."""
        models = {other: listing for other, listing in self.on_disk.models.items() if other != name}
        self.on_disk = RepositorySnapshot(models if found is None else {**models, name: found}, self.on_disk.notes)

    def record(self, name: str) -> ModelRecord:
        """The record of a model, made if need be."""
        return self.records.setdefault(name, ModelRecord(name))

    def set_desired(
        self, record: ModelRecord, listing: ModelListing, serial: int = 0, files: Mapping[int, Mapping[str, bytes]] | None = None
    ) -> None:
        """Makes `listing` what is wanted of the model and begins what follows; `serial` above 0: whether or not it is new."""
        record.listing = listing
        config = listing.config
        if config is None:
            # What is wanted cannot be told, so what was wanted stays so.
            self.reconciler.fail_model(record, listing.error or NOT_POLLED)
            return
        desired = desired_versions(config.version_policy, listing.versions)
        if not desired and not isinstance(config.version_policy, NoVersions):
            self.reconciler.fail_model(record, NO_VERSIONS.format(record.name))
            if serial:
                return
        else:
            record.error = ""
        record.targets = {version: Target.of(listing, version, serial, (files or {}).get(version, {})) for version in sorted(desired)}
        self.reconciler.reconcile(record)

    def remove_desired(self, record: ModelRecord) -> None:
        """Nothing of the model is wanted any more."""
        record.is_required = False
        record.targets = {}
        record.error = ""
        self.reconciler.reconcile(record)

    def collect_garbage(self, record: ModelRecord) -> None:
        """Drops records of what neither serves nor is in the repository."""
        on_disk = self.on_disk.models.get(record.name)
        held = () if on_disk is None else on_disk.versions
        for version, known in list(record.versions.items()):
            if known.state is VersionState.UNLOADED and not (version in held and known.has_served):
                self.reconciler.forget(record, version)
        if not record.versions and not record.is_required and on_disk is None and self.records.get(record.name) is record:
            del self.records[record.name]


def _log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        log.info("%s", note)
