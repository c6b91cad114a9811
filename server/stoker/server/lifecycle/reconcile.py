"""Computes which versions a policy desires, and the next safe actions for one model. Pure: no clock, no I/O, no state.

The plan depends only on its arguments, so it may be computed again at any time (after a scan, a load, a failure, a restart). The tests
verify these guarantees:

1. Availability: as long as a model is desired, its last READY version stays until a desired one is READY.
2. A version whose content changed is loaded beside the one that serves; nothing is unloaded for it.
3. A failed load is not repeated until the content has changed.
4. Convergence: after all actions are done, the next plan is empty.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.backends.api.model import ModelSignature
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy


def desired_versions(policy: VersionPolicy, available: Collection[int]) -> frozenset[int]:
    """The versions that `policy` selects.

    Only a policy that names versions can select one that is not `available`. Such a version is missing, and readiness must account for it.
    """
    match policy:
        case LatestVersions(count):
            return frozenset(sorted(available)[-count:] if count > 0 else ())
        case AllVersions():
            return frozenset(available)
        case SpecificVersions(versions):
            return frozenset(versions)
        case NoVersions():
            return frozenset()


@dataclass(frozen=True, slots=True)
class Generation:
    """The content that a load reads: two equal generations load the same thing.

    Attributes:
        config: Fingerprint of the configuration and of the files beside it.
        files: Fingerprint of the version's files.
        serial: Number of the explicit load that requested it, so that each explicit load is a new generation; 0: no explicit load.
        steps: Of an ensemble, the signatures of the models of its steps.
    """

    config: str
    files: str
    serial: int = 0
    steps: tuple[ModelSignature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """The observed state of one version.

    Attributes:
        version: The version number.
        serving: The generation that serves (state READY); None: none.
        loading: The generation that is being loaded; None: none.
        failed: The generation whose load failed last; None: none, or another one was loaded since.
    """

    version: int
    serving: Generation | None = None
    loading: Generation | None = None
    failed: Generation | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load `generation`; a running load of another generation of this version is cancelled."""

    version: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """Cancel the running load: its result is no longer desired."""

    version: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Take the version out of service; requests that hold it complete."""

    version: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the record of a failed version that is no longer desired."""

    version: int


Action = Load | CancelLoad | Unload | Forget


def plan(statuses: Iterable[VersionStatus], desired: Mapping[int, Generation | None]) -> tuple[Action, ...]:
    """The actions to do now, all at once.

    Args:
        statuses: One for each version that serves, loads or has failed.
        desired: By version, the generation that should serve. None: the version is desired but not in the repository. It cannot be loaded;
            if it serves (from its private copy), it continues to serve.

    Returns:
        The actions, loads first; empty if there is nothing to do.
    """
    known = {status.version: status for status in statuses}
    loads: list[Action] = []
    removals: list[Action] = []
    for version in sorted({*known, *desired}):
        status = known.get(version, VersionStatus(version=version))
        generation = desired.get(version)
        if generation is not None and generation not in (status.serving, status.failed):
            if status.loading != generation:
                loads.append(Load(version, generation))
        elif status.loading is not None:
            removals.append(CancelLoad(version))
        if version in desired:
            continue
        if status.serving is not None:
            if _may_unload(known, desired):
                removals.append(Unload(version))
        elif status.failed is not None:
            removals.append(Forget(version))
    return (*loads, *removals)


def _may_unload(known: Mapping[int, VersionStatus], desired: Mapping[int, Generation | None]) -> bool:
    """Whether versions that are not desired may be unloaded: no version is desired, or every desired one that exists serves.

    A desired version that is not in the repository does not block the unloads if another desired one serves.
    """
    if not desired:
        return True
    serving = {version for version in desired if version in known and known[version].serving is not None}
    return bool(serving) and all(version in serving for version, generation in desired.items() if generation is not None)
