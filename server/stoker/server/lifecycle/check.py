"""Validates a model repository without serving it: what `stoker check` prints.

The check runs the steps of a load (scan, private copy, backend, inspection, completion, the backend's own check, labels, warm-up data) and
keeps the findings of each step, so that every value of the served configuration is explained. Then it loads versions in a separate process,
because some faults of a model appear only in a load.
"""

import enum
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.complete import choose_backend, complete, to_pbtxt
from stoker.server.config.ensemble_completion import complete_ensemble, find_steps
from stoker.server.config.model_formats import is_served
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import ConfigError, Finding, FindingKind, problem_lines
from stoker.server.core.ensemble import ENSEMBLE
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.lifecycle.checksums import verify_checksums
from stoker.server.lifecycle.dependencies import MAX_NESTING, TOO_DEEP, nesting, ordered, steps_of
from stoker.server.lifecycle.labels import read_labels
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot, VersionListing
from stoker.server.lifecycle.loader import VersionSource
from stoker.server.lifecycle.model_code import completed_by_model
from stoker.server.lifecycle.path_models import is_repository
from stoker.server.lifecycle.raw_tensors import with_initial_states
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import TRIAL_LOAD_BYTES, TRIAL_TIMEOUT_S
from stoker.server.lifecycle.snapshot import discard, take_snapshot
from stoker.server.lifecycle.trial_load import TrialLoads
from stoker.server.lifecycle.warmup import read_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """The findings about one version to be served.

    Attributes:
        version: Its number.
        errors: All reasons why the version cannot be loaded.
        backend: The backend that would serve it; empty if it is not determined.
        model_filename: The file it would load.
        notes: Facts that the backend read from the file, such as its opset.
        findings: Each value of the configuration and its origin, including warnings.
        suggestion: An equivalent, complete config.pbtxt; empty if there is an error before the trial load.
        is_loaded: Whether the trial load succeeded; None: none was made.
        untried: Why a trial load was skipped.
        signature: The inputs and outputs that clients would see; None if there is an error before the trial load.
    """

    version: int
    errors: tuple[str, ...] = ()
    backend: str = ""
    model_filename: str = ""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    suggestion: str = ""
    is_loaded: bool | None = None
    untried: str = ""
    signature: ModelSignature | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings among the findings."""
        return tuple(finding.text for finding in self.findings if finding.kind is FindingKind.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """The findings about one model.

    Attributes:
        name: Its name.
        has_config_file: Whether it comes with a config.pbtxt.
        version_policy: The version policy as text.
        errors: Why no version would be served; empty: see the versions.
        present_versions: The versions in the repository.
        versions: The versions to be served.
    """

    name: str
    has_config_file: bool
    version_policy: str = ""
    errors: tuple[str, ...] = ()
    present_versions: tuple[int, ...] = ()
    versions: tuple[VersionReport, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Every error that would keep a version from being served, each with its version."""
        return (*self.errors, *(f"version {report.version}: {error}" for report in self.versions for error in report.errors))


@dataclass(frozen=True, slots=True)
class RepositoryReport:
    """The findings about a repository.

    Attributes:
        models: By name.
        notes: Folders that were skipped, and why.
    """

    models: tuple[ModelReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether every model would be served as configured; False if the repository holds nothing but folders that are no models."""
        return not any(model.problems for model in self.models) and bool(self.models or not self.notes)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"ok": self.is_good, "notes": list(self.notes), "models": [_model_dict(model) for model in self.models]}


class Loading(enum.Enum):
    """The versions that get a trial load."""

    NONE = "none"
    SMALL = "small"
    ALL = "all"


def check_repository(
    roots: Sequence[Path],
    registry: BackendRegistry,
    *,
    follows_links: bool = False,
    loading: Loading = Loading.NONE,
    timeout_s: float = TRIAL_TIMEOUT_S,
    trial_registry: Callable[[], BackendRegistry] = BackendRegistry,
    progress: Callable[[str], None] = lambda text: None,
) -> RepositoryReport:
    """Checks the repository below `roots`; writes nothing there and loads nothing in this process.

    Args:
        roots: The repository's folders.
        registry: The backends.
        follows_links: Whether links are followed to targets below their root.
        loading: Which versions without an error get a trial load: SMALL are those up to `TRIAL_LOAD_BYTES`.
        timeout_s: Bound of one trial load, seconds.
        trial_registry: Makes the same backends in the process of the trial loads.
        progress: Called with the name of the next step.

    Raises:
        RepositoryUnreadable: a root cannot be read, or is not a repository.
    """
    snapshot = ModelRepository(roots, follows_links=follows_links).scan()
    notes = (*snapshot.notes, *_served_as_paths(roots, snapshot))
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as name:
        area = Path(name)
        with TrialLoads(area, timeout_s=timeout_s, registry=trial_registry) as trials:
            checker = _Checker(registry, area, trials, loading, progress, dict.fromkeys(snapshot.models), snapshot.models)
            # Ensembles are checked against the models of their steps.
            reports = {name: checker.model(snapshot.models[name]) for name in ordered(snapshot.models, snapshot.models)}
    return RepositoryReport(tuple(reports[name] for name in snapshot.models), notes)


def _served_as_paths(roots: Sequence[Path], snapshot: RepositorySnapshot) -> Iterator[str]:
    """A note on each folder that has model files and no model folder: `serve` serves such a folder."""
    if any(listing.directory.is_dir() for listing in snapshot.models.values()):
        return
    for root in roots:
        if not is_repository(root) and any(is_served(file.name) for file in root.iterdir()):
            yield f"the folder has model files and no model folder; stoker serve {shlex.quote(str(root))} serves each file as it is"


@dataclass(frozen=True, slots=True)
class _Checker:
    """Checks models one after the other.

    Attributes:
        registry, area, trials, loading, progress: The arguments of `check_repository`.
        served: For each model, the signatures of the versions without an error; None: the model is not checked yet.
        models: All models of the repository.
    """

    registry: BackendRegistry
    area: Path
    trials: TrialLoads
    loading: Loading
    progress: Callable[[str], None]
    served: dict[str, dict[int, ModelSignature] | None]
    models: Mapping[str, ModelListing]

    def model(self, listing: ModelListing) -> ModelReport:
        report = self._model(listing)
        self.served[listing.name] = {
            version.version: version.signature for version in report.versions if version.signature is not None and not version.errors
        }
        return report

    def _model(self, listing: ModelListing) -> ModelReport:
        present = tuple(sorted(listing.versions))
        config = listing.config
        if config is None:
            return ModelReport(
                name=listing.name, has_config_file=listing.has_config_file, errors=listing.problems, present_versions=present
            )
        desired = sorted(desired_versions(config.version_policy, listing.versions))
        errors: tuple[str, ...] = ()
        if not desired and not isinstance(config.version_policy, NoVersions):
            errors = ("no version folder such as '1' holds anything to serve",)
        return ModelReport(
            name=listing.name,
            has_config_file=listing.has_config_file,
            version_policy=_policy_text(config.version_policy),
            errors=errors,
            present_versions=present,
            versions=tuple(self._version(listing, config, version) for version in desired),
        )

    def _version(self, listing: ModelListing, config: ParsedConfig, version: int) -> VersionReport:
        part = listing.versions.get(version)
        if part is None:
            return VersionReport(version=version, errors=("named by the version policy, but not in the repository",))
        if part.error is not None:
            return VersionReport(version=version, errors=(part.error,))
        self.progress(f"reading {listing.name} version {version}")
        if config.ensemble is not None:
            if nesting(listing.name, lambda each: steps_of(self.models.get(each))) > MAX_NESTING:
                return VersionReport(version=version, errors=(TOO_DEEP,), backend=ENSEMBLE)
            return _inspect_ensemble(listing, config, version, self.served)
        try:
            files = take_snapshot(part.directory, self.area, links_root=listing.links_root, selected=part.files)
        except ModelLoadError as error:
            return VersionReport(version=version, errors=(error.message,))
        try:
            report = _inspect(listing, config, version, self.registry, files, runs_code=self.loading is not Loading.NONE)
        finally:
            discard(files)
        return report if report.errors else self._tried(report, listing, config, part, sum(files.sizes_bytes.values()))

    def _tried(
        self, report: VersionReport, listing: ModelListing, config: ParsedConfig, part: VersionListing, size_bytes: int
    ) -> VersionReport:
        """`report` with the result of its trial load, if one is to be made."""
        if self.loading is Loading.NONE:
            return report
        if self.loading is Loading.SMALL and size_bytes > TRIAL_LOAD_BYTES:
            limit = f"its files have {size_bytes >> 20} MiB, more than {TRIAL_LOAD_BYTES >> 20}"
            return replace(report, untried=f"{limit}; --load loads it all the same")
        self.progress(f"loading {listing.name} version {part.version}")
        source = VersionSource(
            name=listing.name,
            version=part.version,
            model_dir=listing.directory,
            version_dir=part.directory,
            parsed=config,
            links_root=listing.links_root,
            selected=part.files,
        )
        failure = self.trials.load(source, size_bytes)
        if failure is None:
            return replace(report, is_loaded=True)
        return replace(report, is_loaded=False, errors=(f"load FAILED: {failure}",))


def _inspect(
    listing: ModelListing, config: ParsedConfig, version: int, registry: BackendRegistry, files: ModelFiles, *, runs_code: bool
) -> VersionReport:
    """Inspects a version; `runs_code`: whether a model that is code may complete its configuration, in a process of its own."""
    backend_name, model_filename = "", ""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    try:
        verify_checksums(config, version, files, listing.directory, listing.links_root)
        backend, model_filename = choose_backend(config, files.sizes_bytes.keys(), registry)
        backend_name = backend.name
        facts = backend.inspect(files, model_filename)
        notes = facts.notes
        if not runs_code and backend.runs_model_code and not (config.message.input and config.message.output):
            untried = "its code completes the configuration, and --no-load runs no code"
            return VersionReport(version=version, backend=backend_name, model_filename=model_filename, notes=notes, untried=untried)
        if runs_code:
            config = completed_by_model(config, backend, files, model_filename, version, listing.directory)
        completion = complete(config, facts, backend, model_filename)
        findings = completion.findings
        read_labels(listing.directory, completion.config, listing.links_root)
        config_with_states = with_initial_states(completion.config, listing.directory, listing.links_root)
        for _ in read_samples(config_with_states.inner, listing.directory, listing.links_root):
            pass  # a sample must be read to find its faults
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
            signature=completion.config.signature,
        )
    return VersionReport(
        version=version, errors=errors, backend=backend_name, model_filename=model_filename, notes=notes, findings=findings
    )


def _inspect_ensemble(
    listing: ModelListing, config: ParsedConfig, version: int, served: Mapping[str, dict[int, ModelSignature] | None]
) -> VersionReport:
    """Checks an ensemble, which has no files of its own but labels."""
    try:
        completion = complete_ensemble(config, find_steps(config, served))
        read_labels(listing.directory, completion.config, listing.links_root)
    except ServingError as error:
        warnings = error.warnings if isinstance(error, ConfigError) else ()
        findings = tuple(Finding(warning.field, FindingKind.WARNING, str(warning)) for warning in warnings)
        return VersionReport(version=version, errors=problem_lines(error), backend=ENSEMBLE, findings=findings)
    suggestion, signature = to_pbtxt(completion.config), completion.config.signature
    return VersionReport(version=version, backend=ENSEMBLE, findings=completion.findings, suggestion=suggestion, signature=signature)


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
        "loaded": report.is_loaded,
        "not_loaded_because": report.untried or None,
        "notes": list(report.notes),
        "findings": [{"field": finding.field, "kind": finding.kind.value, "text": finding.text} for finding in report.findings],
        "suggestion": report.suggestion,
    }
