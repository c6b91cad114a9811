"""What a look at the repository saw: immutable, comparable, without a handle on anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.server.config.parsed import ParsedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionListing:
    """One version folder.

    Attributes:
        version: Its number.
        directory: The folder.
        fingerprint: Equal as long as the file list, sizes, modification times and inodes are.
        error: Why it cannot be loaded, where the look at it tells so already.
    """

    version: int
    directory: Path
    fingerprint: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """One model folder.

    Attributes:
        name: The folder's name.
        directory: The folder.
        root_index: Which root holds it.
        config: Its configuration as written; None if there is an `error`.
        error: Why the model as a whole cannot be served, in one line.
        policy: Which versions are wanted where something else than config.pbtxt says so; a change of it alone loads nothing anew.
        problems: What `error` is made of, each with its place; empty if there is none.
        fingerprint: Equal as long as config.pbtxt and the files beside it (labels, warm-up data) are.
        versions: By number.
        has_config_file: Whether there is a config.pbtxt.
        links_root: The folder below which links in the model may lead; None: they are refused.
    """

    name: str
    directory: Path
    root_index: int
    config: ParsedConfig | None
    error: str | None
    fingerprint: str
    versions: Mapping[int, VersionListing]
    has_config_file: bool = False
    problems: tuple[str, ...] = ()
    policy: str = ""
    links_root: Path | None = None

    @property
    def mark(self) -> tuple[object, ...]:
        """Equal as long as nothing that a load would read has changed."""
        parts = tuple((v, part.fingerprint, part.error) for v, part in self.versions.items())
        return self.root_index, self.fingerprint, self.error, self.policy, parts


@dataclass(frozen=True, slots=True)
class RepositorySnapshot:
    """What a scan saw.

    Attributes:
        models: By name, sorted.
        notes: What was passed over, and why.
    """

    models: Mapping[str, ModelListing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
