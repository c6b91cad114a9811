"""Says why a folder cannot be used as a model repository, with the cure of the usual mistakes. For the operator: texts name paths."""

import contextlib
import itertools
import os
import re
import shlex
from pathlib import Path

from stoker.server.config.model_formats import is_model_file, is_served, served_name
from stoker.server.lifecycle.bounds import MAX_FOLDER_ENTRIES
from stoker.server.lifecycle.names import parse_version

#: A place that is no folder of this host, such as `s3://bucket/models`; `Path` has joined its slashes.
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/")
#: What divided several repositories in one value before each had its own flag or line: PATH's separator on POSIX.
_OLD_SEPARATOR = ":"


def unreadable_root(root: Path, error: OSError) -> str:
    """Why the repository `root` cannot be read."""
    reason = f"model repository '{root}' cannot be read: {error.strerror or error}"
    if isinstance(error, NotADirectoryError) and root.is_file():
        return reason + _if_file(root)
    return reason + _if_missing(str(root)) if isinstance(error, FileNotFoundError) else reason


def _if_missing(root: str) -> str:
    parts = [part for part in root.split(_OLD_SEPARATOR) if part]
    if len(parts) > 1 and all(Path(part).is_dir() for part in parts):
        flags = " ".join(f"--model-repository={shlex.quote(part)}" for part in parts)
        return (
            f"; a '{_OLD_SEPARATOR}' is part of the path: repeat the flag for several repositories ({flags}), "
            "or give one per line in the environment"
        )
    if _REMOTE.match(root):
        return "; a folder of this host is expected: models are not fetched from elsewhere"
    return ""


def _if_file(file: Path) -> str:
    text = "; a repository is a folder that holds a folder per model, and that a folder per version"
    if not is_served(file.name):
        return text
    version = f"models/{file.name.partition('.')[0] or 'model'}/1"
    move = f"mkdir -p {shlex.quote(version)} && cp {shlex.quote(str(file))} {shlex.quote(f'{version}/{served_name(file.name)}')}"
    return f"{text}: {move}, then serve --model-repository=models"


def not_a_repository(root: Path) -> str | None:
    """Why the folder `root` is no repository but a model or a version; None where nothing tells so, or models are in it too."""
    there = Path(os.path.abspath(root))  # noqa: PTH100 - as the operator wrote it, links not resolved: that is what is to be changed
    files, folders = _listed(there)
    if holds_models(there):
        return None
    if parse_version(there.name) is not None and not folders and any(is_model_file(name) for name in files):
        return (
            f"'{root}' holds model files, so it is a version of a model; the repository is the folder that holds the model folders: "
            f"{shlex.quote(str(there.parent.parent))}"
        )
    if any(parse_version(name) is not None and _is_version(there / name) for name in folders):
        return (
            f"'{root}' holds version folders, so it is a model; the repository is the folder that holds the model folders: "
            f"{shlex.quote(str(there.parent))} (serve --model-name={shlex.quote(there.name)} serves the model alone)"
        )
    return None


def holds_models(folder: Path, most: int | None = None) -> bool:
    """Whether one of its folders, or of the first `most`, is a model, so that it is a repository."""
    return any(_is_model(folder / name) for name in _listed(folder)[1][:most])


def _is_model(folder: Path) -> bool:
    return any(parse_version(name) is not None for name in _listed(folder)[1])


def _is_version(folder: Path) -> bool:
    return any(is_model_file(name) for name in _listed(folder)[0])


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the files and of the folders in `folder`, links left out; none where it cannot be read."""
    files: list[str] = []
    folders: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in itertools.islice(found, MAX_FOLDER_ENTRIES):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
    return files, folders
