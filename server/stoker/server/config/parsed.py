"""`ParsedConfig`: one configuration as written, in Triton's form, before a model file completes it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.server.config.report import Problem
from stoker.server.core.ensemble import Ensemble
from stoker.server.core.model_config import (
    AllVersions,
    BatchingDefaults,
    LatestVersions,
    ListedModel,
    NoVersions,
    SpecificVersions,
    VersionPolicy,
)
from stoker.server.pb import model_config_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A configuration without contradictions in itself; `complete` fills in the fields that it omits.

    Attributes:
        name: The model's name.
        version_policy: Which versions to serve.
        backend: As written; empty if omitted.
        platform: As written; empty if omitted.
        remarks: Fields that are accepted but do not have the expected effect, each with its position.
        is_adlik: Whether Adlik's rule applies: the model is batched without a `dynamic_batching` block.
        max_enqueued_batches: Adlik's bound of the queue; 0: not written.
        message: The configuration as a message, Adlik's spellings translated. Treat as immutable.
        source: Short name of where it was written, such as `digits/config.pbtxt`.
        lines: Line of every field that was written, by path such as `input[1].dims`; None in a source without lines.
        first_line: The line of values without a line of their own; None in a source without lines.
        batching_defaults: The operator's settings for models that do not configure batching.
        ensemble: The steps of an ensemble; None: the model is none.
        is_sent: Whether it came with a load request.
        is_described: Whether the model's own code completed `message`.
    """

    name: str
    version_policy: VersionPolicy
    backend: str
    platform: str
    remarks: tuple[Problem, ...] = ()
    is_adlik: bool = False
    max_enqueued_batches: int = 0
    message: pb.ModelConfig
    source: str
    lines: Mapping[str, int | None] = field(default_factory=dict)
    first_line: int | None = None
    batching_defaults: BatchingDefaults = field(default_factory=BatchingDefaults)
    ensemble: Ensemble | None = None
    is_sent: bool = False
    is_described: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The remarks as text, each `file:line: field: message`."""
        return tuple(str(remark) for remark in self.remarks)

    def is_written(self, path: str) -> bool:
        """Whether the field was written, even if with its default value."""
        return path in self.lines

    def is_completed_by_code(self, path: str) -> bool:
        """Whether the value of the field comes from the model's own code."""
        return self.is_described and not self.is_written(path)

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], "ParsedConfig"], tuple[dict[str, Any]]]:
        """Pickles the message as bytes, for other processes: generated message classes cannot be pickled."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return _restored, ({**values, "message": self.message.SerializeToString()},)


def _restored(values: dict[str, Any]) -> ParsedConfig:
    return ParsedConfig(**{**values, "message": pb.ModelConfig.FromString(values["message"])})


def as_listed(parsed: ParsedConfig, model: ListedModel) -> ParsedConfig:
    """The configuration with the settings of the model list applied."""
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
            pass  # the list has no such policy
