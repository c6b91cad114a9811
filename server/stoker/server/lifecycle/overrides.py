"""What an explicit load brings along, turned into a listing as if the repository held it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stoker.backends.api.errors import InvalidRequest
from stoker.server.config.json_override import parse_config_json
from stoker.server.core.overrides import LoadOverrides
from stoker.server.lifecycle.listing import ModelListing, VersionListing
from stoker.server.lifecycle.names import parse_version, relative_file, shown

VersionFiles = Mapping[int, Mapping[str, bytes]]


def split_files(files: Mapping[str, bytes]) -> VersionFiles:
    """The files by version, each path relative to its version folder.

    Args:
        files: By `<version>/<path>`, with or without a leading `file:`.

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
    """Refuses what no repository content can make right.

    Raises:
        InvalidRequest: files without a config.
    """
    if overrides.files and overrides.config_json is None:
        raise InvalidRequest(f"failed to load '{name}', file overrides need a 'config' override as well")


def apply_overrides(name: str, found: ModelListing | None, overrides: LoadOverrides, roots: tuple[Path, ...]) -> ModelListing | None:
    """What to load: the repository's listing with the override's config, or, where files come along, those files and nothing else.

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
            root_index=0,
            config=None,
            error=None,
            fingerprint="sent",
            versions=versions,
            has_config_file=True,
        )
    if found is None:
        return None
    config = parse_config_json(overrides.config_json, model_name=name)
    # The override replaces config.pbtxt, so what is wrong with that file is no obstacle; a listing without versions still tells it.
    return replace(found, config=config, error=found.error if not found.versions else None, fingerprint="sent")
