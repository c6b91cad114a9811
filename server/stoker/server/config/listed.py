"""A model's configuration with what a list of models says of it: platform and version policy."""

from dataclasses import replace

from stoker.server.config.parsed import ParsedConfig
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.core.model_list import ListedModel
from stoker.server.pb import model_config_pb2 as pb


def as_listed(parsed: ParsedConfig, model: ListedModel) -> ParsedConfig:
    """The configuration with what the list says of it."""
    message = pb.ModelConfig()
    message.CopyFrom(parsed.message)
    platform = parsed.platform
    if model.platform and not (parsed.backend or platform):
        platform = message.platform = model.platform
    policy = model.version_policy
    if policy is None:
        return replace(parsed, message=message, platform=platform)
    message.ClearField("version_policy")
    _write_policy(policy, message.version_policy)
    return replace(parsed, message=message, platform=platform, version_policy=policy)


def _write_policy(policy: VersionPolicy, target: pb.ModelVersionPolicy) -> None:
    match policy:
        case LatestVersions(count):
            target.latest.num_versions = count
        case AllVersions():
            target.all.SetInParent()
        case SpecificVersions(versions):
            target.specific.versions.extend(versions)
        case NoVersions():
            pass  # a list cannot say it
