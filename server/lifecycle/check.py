"""Validates a model repository without serving it: what `stoker check` prints.

Goes the way of a load as far as it goes without a device (scan, private copy, backend, inspection, completion, the backend's own check,
labels, warm-up data) and keeps what each step found out, so that every value of the served configuration can be explained before anything
is served.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.api.errors import ModelLoadError, ServingError
from backends.api.files import ModelFiles
from backends.api.registry import BackendRegistry
from server.config.backend_choice import choose_backend
from server.config.complete import complete
from server.config.errors import ConfigError, problem_lines
from server.config.findings import Finding, FindingKind
from server.config.parsed import ParsedConfig
from server.config.wire import to_pbtxt
from server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from server.lifecycle.labels import read_labels
from server.lifecycle.listing import ModelListing
from server.lifecycle.repository import ModelRepository
from server.lifecycle.snapshot import discard, take_snapshot
from server.lifecycle.version_policy import wanted_versions
from server.lifecycle.warmup import read_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """What was found out about one version that would be served.

    Attributes:
        version: Its number.
        errors: Everything that speaks against loading it.
        backend: The backend that would serve it; empty if that is not even clear.
        model_filename: The file it would load.
        notes: What the backend read from the file, such as its opset.
        findings: Each value of the configuration and where it came from, warnings among them.
        suggestion: A config.pbtxt that says all of it; empty if there is an error.
    """

    version: int
    errors: tuple[str, ...] = ()
    backend: str = ""
    model_filename: str = ""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    suggestion: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Texts of what is accepted without the effect expected."""
        return tuple(finding.text for finding in self.findings if finding.kind is FindingKind.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """What was found out about one model.

    Attributes:
        name: Its name.
        has_config_file: Whether it comes with a config.pbtxt.
        version_policy: Which versions it wants served, in words.
        errors: Why none would be; empty: see the versions.
        present_versions: The versions in the repository.
        versions: Those that would be served.
    """

    name: str
    has_config_file: bool
    version_policy: str = ""
    errors: tuple[str, ...] = ()
    present_versions: tuple[int, ...] = ()
    versions: tuple[VersionReport, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that would keep a version from being served, each with the version it is about."""
        return (*self.errors, *(f"version {report.version}: {error}" for report in self.versions for error in report.errors))


@dataclass(frozen=True, slots=True)
class RepositoryReport:
    """What was found out about a repository.

    Attributes:
        models: By name.
        notes: Folders that were passed over, and why.
    """

    models: tuple[ModelReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether every model would be served as its configuration says; nothing but folders that are no models is not good."""
        return not any(model.problems for model in self.models) and bool(self.models or not self.notes)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON knows data."""
        return {"ok": self.is_good, "notes": list(self.notes), "models": [_model_dict(model) for model in self.models]}


def check_repository(roots: Sequence[Path], registry: BackendRegistry) -> RepositoryReport:
    """Reads everything below `roots` and reports on it; nothing is loaded, run or written there.

    Raises:
        RepositoryUnreadable: a root cannot be read, or is not a repository.
    """
    snapshot = ModelRepository(roots).scan()
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as area:
        reports = tuple(_check_model(listing, registry, Path(area)) for listing in snapshot.models.values())
    return RepositoryReport(reports, snapshot.notes)


def _check_model(listing: ModelListing, registry: BackendRegistry, area: Path) -> ModelReport:
    present = tuple(sorted(listing.versions))
    config = listing.config
    if config is None:
        return ModelReport(name=listing.name, has_config_file=listing.has_config_file, errors=listing.problems, present_versions=present)
    wanted = sorted(wanted_versions(config.version_policy, listing.versions))
    errors: tuple[str, ...] = ()
    if not wanted and not isinstance(config.version_policy, NoVersions):
        errors = ("no version folder such as '1' holds anything to serve",)
    return ModelReport(
        name=listing.name,
        has_config_file=listing.has_config_file,
        version_policy=_policy_text(config.version_policy),
        errors=errors,
        present_versions=present,
        versions=tuple(_check_version(listing, config, version, registry, area) for version in wanted),
    )


def _check_version(listing: ModelListing, config: ParsedConfig, version: int, registry: BackendRegistry, area: Path) -> VersionReport:
    part = listing.versions.get(version)
    if part is None:
        return VersionReport(version=version, errors=("named by the version policy, but not in the repository",))
    if part.error is not None:
        return VersionReport(version=version, errors=(part.error,))
    try:
        files = take_snapshot(part.directory, area)
    except ModelLoadError as error:
        return VersionReport(version=version, errors=(error.message,))
    try:
        return _inspect(listing, config, version, registry, files)
    finally:
        discard(files)


def _inspect(listing: ModelListing, config: ParsedConfig, version: int, registry: BackendRegistry, files: ModelFiles) -> VersionReport:
    backend_name, model_filename = "", ""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    try:
        backend, model_filename = choose_backend(config, files.sizes_bytes.keys(), registry)
        backend_name = backend.name
        facts = backend.inspect(files, model_filename)
        notes = facts.notes
        completion = complete(config, facts, backend, model_filename)
        findings = completion.findings
        read_labels(listing.directory, completion.config)
        for _ in read_samples(completion.config, listing.directory):
            pass  # reading a sample is what finds its faults
    except ServingError as error:
        errors = problem_lines(error)
        if isinstance(error, ConfigError):
            findings = tuple(Finding(warning.field, FindingKind.WARNING, str(warning)) for warning in error.warnings)
    except Exception as error:  # noqa: BLE001 - a backend is a plug-in: whatever it raises is this version's problem
        errors = (f"backend '{backend_name}' raised {type(error).__name__}: {error}",)
    else:
        return VersionReport(
            version=version,
            backend=backend_name,
            model_filename=model_filename,
            notes=notes,
            findings=findings,
            suggestion=to_pbtxt(completion.config),
        )
    return VersionReport(
        version=version, errors=errors, backend=backend_name, model_filename=model_filename, notes=notes, findings=findings
    )


def _policy_text(policy: VersionPolicy) -> str:
    match policy:
        case LatestVersions(count):
            return f"latest {count}"
        case AllVersions():
            return "all"
        case SpecificVersions(versions):
            return f"specific {', '.join(str(version) for version in versions)}"
        case NoVersions():
            return "none"


def _model_dict(model: ModelReport) -> dict[str, Any]:
    return {
        "name": model.name,
        "ok": not model.problems,
        "has_config_file": model.has_config_file,
        "version_policy": model.version_policy,
        "present_versions": list(model.present_versions),
        "problems": list(model.problems),
        "versions": [_version_dict(version) for version in model.versions],
    }


def _version_dict(report: VersionReport) -> dict[str, Any]:
    return {
        "version": report.version,
        "ok": not report.errors,
        "errors": list(report.errors),
        "backend": report.backend,
        "model_filename": report.model_filename,
        "notes": list(report.notes),
        "findings": [{"field": finding.field, "kind": finding.kind.value, "text": finding.text} for finding in report.findings],
        "suggestion": report.suggestion,
    }
