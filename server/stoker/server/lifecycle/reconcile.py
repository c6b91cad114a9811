"""Computes which versions a policy desires, and the next safe actions for one model. Pure: no clock, no I/O, no state.

The plan depends only on its arguments, so it may be made again at any time (after a scan, a load, a failure, a restart) and repeating it is
harmless. It promises, and the tests prove:

1. Availability: as long as a model is wanted, its last READY version stays until a wanted one is READY.
2. A version whose content changed is loaded beside the one that serves; nothing is unloaded for it.
3. A load that failed is not tried again until what failed has changed.
4. Convergence: when every action has been done, the next plan is empty.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy


def desired_versions(policy: VersionPolicy, available: Collection[int]) -> frozenset[int]:
    """The versions that `policy` wants.

    Only a policy that names versions can want one that is not `available`: such a version is missing, and whoever reports readiness must
    say so instead of leaving it out.
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
        config: Fingerprint of the configuration and what lies beside it.
        files: Fingerprint of the version's files.
        serial: Number of the explicit load that asked for it, so that an explicit load is always a new generation; 0: none did.
    """

    config: str
    files: str
    serial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """The observed state of one version.

    Attributes:
        version: Its number.
        serving: What serves (state READY); None: nothing.
        loading: What is being loaded; None: nothing.
        failed: What failed to load last; None: nothing, or something else was loaded since.
    """

    version: int
    serving: Generation | None = None
    loading: Generation | None = None
    failed: Generation | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load `generation`; a load of another one that is under way for this version is given up."""

    version: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """Give up the load in progress: its result is no longer desired."""

    version: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Take the version out of service; requests that hold it finish."""

    version: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the record of a failure whose version is no longer desired."""

    version: int


Action = Load | CancelLoad | Unload | Forget


def plan(statuses: Iterable[VersionStatus], desired: Mapping[int, Generation | None]) -> tuple[Action, ...]:
    """The actions that may be done now, all of them at once.

    Args:
        statuses: One for each version that serves, loads or failed.
        desired: By version, the content that should serve; None where the version is wanted but not in the repository: it cannot be loaded,
            and if it serves (from its private copy) it goes on.

    Returns:
        Loads first. Empty when nothing can or need be done.
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

    A wanted version that is not in the repository holds nothing back for ever, as long as another wanted one serves.
    """
    if not desired:
        return True
    serving = {version for version in desired if version in known and known[version].serving is not None}
    return bool(serving) and all(version in serving for version, generation in desired.items() if generation is not None)
