"""`ModelListing`: the result of scanning one model, and the changes that the parameters of an explicit load make to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from stoker.backends.api.errors import InvalidRequest
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import parse_config_json
from stoker.server.core.model_config import LoadOverrides
from stoker.server.core.model_key import model_key
from stoker.server.lifecycle.settings import parse_version, relative_file, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionListing:
    """One version folder.

    Attributes:
        version: The version number.
        directory: The folder.
        fingerprint: Unchanged as long as the file list, sizes, modification times and inodes are unchanged.
        error: Why the version cannot be loaded, if the scan has found a reason.
        files: The files of the folder that form the version, by their name in the version; None: all of them.
    """

    version: int
    directory: Path
    fingerprint: str
    error: str | None = None
    files: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """One model folder.

    Attributes:
        name: The folder's name.
        directory: The folder.
        root_index: Index of the root that holds it.
        config: Its configuration as written; None if there is an `error`.
        error: Why the model as a whole cannot be served, in one line.
        policy: The version policy, if another source than config.pbtxt sets it; a change of the policy reloads nothing.
        problems: The single problems of `error`, each with its position; empty if there is none.
        fingerprint: Unchanged as long as config.pbtxt and the files beside it (labels, warm-up data) are unchanged.
        versions: By number.
        has_config_file: Whether there is a config.pbtxt.
        links_root: The folder below which link targets in the model may lie; None: links are rejected.
        is_namespaced: Whether its repository is its namespace.
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
    is_namespaced: bool = False

    @property
    def key(self) -> str:
        """The model's key, see `core/model_key.py`."""
        return model_key(self.name, self.root_index) if self.is_namespaced else self.name

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that is unchanged as long as nothing that a load reads has changed."""
        parts = tuple((v, part.fingerprint, part.error) for v, part in self.versions.items())
        return self.root_index, self.fingerprint, self.error, self.policy, parts


@dataclass(frozen=True, slots=True)
class RepositorySnapshot:
    """The result of one scan.

    Attributes:
        models: By key, sorted.
        notes: Skipped folders and files, and why.
    """

    models: Mapping[str, ModelListing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ModelSource(Protocol):
    """A source of models, as the manager uses it. Calls block, and may come from threads."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders to watch for changes."""

    def check_roots(self) -> None:
        """Checks that the roots can be read.

        Raises:
            RepositoryUnreadable: they cannot.
        """

    def scan(self) -> RepositorySnapshot:
        """Scans all models.

        Raises:
            RepositoryUnreadable: a root was never readable.
        """

    def find(self, name: str) -> ModelListing | None:
        """Scans the model of the key `name`; None if there is none."""


VersionFiles = Mapping[int, Mapping[str, bytes]]


def split_files(files: Mapping[str, bytes]) -> VersionFiles:
    """The files by version, each path relative to its version folder.

    Args:
        files: Contents by `<version>/<path>`, with or without a leading `file:`.

    Raises:
        InvalidRequest: a path has no version in front, or is not a clean relative path.
    """
    by_version: dict[int, dict[str, bytes]] = {}
    for name, content in files.items():
        plain = name.removeprefix("file:")
        first, _, rest = plain.partition("/")
        version = parse_version(first)
        if version is None or not rest:
            raise InvalidRequest(f"file override {shown(name)} must be named '<version>/<file>', such as '1/model.onnx'")
        path = relative_file(rest).as_posix()
        if by_version.setdefault(version, {}).setdefault(path, content) is not content:
            raise InvalidRequest(f"file override {shown(plain)} is given twice")
    return by_version


def check_overrides(name: str, overrides: LoadOverrides) -> None:
    """Rejects overrides that are invalid for any content of the repository.

    Raises:
        InvalidRequest: files without a config.
    """
    if overrides.files and overrides.config_json is None:
        raise InvalidRequest(f"failed to load '{name}', file overrides need a 'config' override as well")


def apply_overrides(name: str, found: ModelListing | None, overrides: LoadOverrides, roots: tuple[Path, ...]) -> ModelListing | None:
    """The listing to load: the repository's listing with the override's config or, if the override has files, a listing of those files
    only.

    Raises:
        ModelLoadError: the config is wrong.
        InvalidRequest: a file's name is.
    """
    if overrides.config_json is None:
        return found
    if overrides.files:
        directory = found.directory if found is not None else roots[0] / name
        versions = {
            v: VersionListing(version=v, directory=directory / str(v), fingerprint="sent") for v in sorted(split_files(overrides.files))
        }
        found = ModelListing(
            name=name,
            directory=directory,
            root_index=0 if found is None else found.root_index,
            config=None,
            error=None,
            fingerprint="sent",
            versions=versions,
            has_config_file=True,
        )
    if found is None:
        return None
    config = parse_config_json(overrides.config_json, model_name=name)
    # The override replaces config.pbtxt, so an error of that file no longer matters; a listing without versions keeps its error.
    return replace(found, config=config, error=found.error if not found.versions else None, fingerprint="sent")
