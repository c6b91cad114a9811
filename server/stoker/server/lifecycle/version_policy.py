"""Which versions of a model should be served, given those that exist. Pure: no clock, no I/O."""

from collections.abc import Collection

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
