"""Reads the parts of one model folder, by descriptor.

Nothing here blocks on a FIFO, reads without a bound, or follows a link unless links are allowed.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.server.lifecycle.bounds import MAX_COMPANIONS, MAX_CONFIG_BYTES, MAX_FOLDER_ENTRIES
from stoker.server.lifecycle.folder import LINKS_HINT, Folder, LinkRefused
from stoker.server.lifecycle.listing import VersionListing
from stoker.server.lifecycle.names import parse_version, shown
from stoker.server.lifecycle.tree import EntryKind, TreeEntry, entry_of, fingerprint, kind_of, list_tree

CONFIG_NAME = "config.pbtxt"
#: Folder of warm-up data next to the version folders.
WARMUP_DIR = "warmup"
#: Folder of configurations to choose from by name, as Triton's.
CONFIGS_DIR = "configs"


def entries(folder: int) -> set[str]:
    """The names in a folder.

    Raises:
        OSError: it cannot be read, or holds more than the bound.
    """
    names: set[str] = set()
    with os.scandir(folder) as found:
        for item in found:
            names.add(item.name)
            if len(names) > MAX_FOLDER_ENTRIES:
                raise OSError(errno.EFBIG, f"more than {MAX_FOLDER_ENTRIES} entries in one folder")
    return names


def plain_files(folder: Folder, names: Iterable[str]) -> dict[str, bool]:
    """Those of `names` that are files in the folder, or links to some, by whether they are links."""
    found: dict[str, bool] = {}
    for name in names:
        with contextlib.suppress(OSError):
            # Following a link only tells what is behind it; nothing there is opened.
            if stat.S_ISREG(os.stat(name, dir_fd=folder.descriptor).st_mode):
                found[name] = stat.S_ISLNK(os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode)
    return found


def read_version(model: Folder, directory: Path, version: int) -> VersionListing | None:
    """The version's folder as it is; None where the name is not a folder's."""
    name = str(version)
    listing = VersionListing(version=version, directory=directory / name, fingerprint="")
    try:
        kind = kind_of(model.status(name).st_mode)
        if kind is EntryKind.LINK:
            error = f"the version folder is a symbolic link; it must be a real folder{LINKS_HINT}"
            return replace(listing, fingerprint=error, error=error)
        if kind is not EntryKind.FOLDER:
            return None
        with model.folder(name) as folder:
            return replace(listing, fingerprint=fingerprint(list_tree(folder)))
    except FileNotFoundError:
        return None
    except OSError as error:
        return replace(listing, fingerprint=f"{error.errno}", error=f"the version folder cannot be read: {error.strerror}")
    except ModelLoadError as error:
        return replace(listing, fingerprint=error.message, error=f"the version folder cannot be read: {error.message}")


def passed_over(folder: int, model: str, names: set[str]) -> Iterator[str]:
    """Notes on folders, and links to some, that stand where versions do and are none."""
    for name in sorted(names):
        if name.startswith(".") or name in (WARMUP_DIR, CONFIGS_DIR) or parse_version(name) is not None:
            continue
        try:
            # Following a link only tells what is behind it; nothing there is opened.
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode)
        except OSError:
            continue
        if is_folder:
            yield f"model '{model}': folder {shown(name)} is passed over: a version is a number from 1 without sign or leading zeros"


def companions(folder: Folder, names: set[str]) -> Iterator[TreeEntry]:
    """Files next to the version folders that a load may read: labels and warm-up data."""
    count = 0
    for name in sorted(names):
        if name == CONFIG_NAME or name.startswith(".") or name.endswith("~") or parse_version(name) is not None:
            continue
        count += 1
        if count > MAX_COMPANIONS:
            raise ModelLoadError(f"more than {MAX_COMPANIONS} files lie next to the version folders")
        try:
            entry = entry_of(name.encode(errors="backslashreplace").decode(), _status_of_companion(folder, name))
            if entry.kind is EntryKind.FILE or (entry.kind is EntryKind.LINK and folder.root is not None):
                yield entry
            elif entry.kind is EntryKind.FOLDER and name == WARMUP_DIR:
                with folder.folder(name) as warmup:
                    yield from list_tree(warmup)
        except FileNotFoundError:
            continue


def _status_of_companion(folder: Folder, name: str) -> os.stat_result:
    """Of what it is, or leads to; of the link itself where that may not be followed: a load that needs it will say so."""
    try:
        return folder.status(name)
    except LinkRefused:
        return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)


def read_config(folder: Folder, path: str = CONFIG_NAME) -> bytes:
    """The content of config.pbtxt, or of another configuration below the folder.

    Raises:
        ModelLoadError: it, or a folder around it, is a link that is not followed; it is not a plain file, too large, or unreadable.
    """
    try:
        with folder.file(path) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ModelLoadError(f"{path} is not a plain file")
            content = b""
            while chunk := os.read(descriptor, MAX_CONFIG_BYTES + 1 - len(content)):
                content += chunk
    except OSError as error:
        reason = f"it is a symbolic link{LINKS_HINT}" if error.errno == errno.ELOOP else error.strerror
        raise ModelLoadError(f"{path} cannot be read: {reason}") from error
    if len(content) > MAX_CONFIG_BYTES:
        raise ModelLoadError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    return content


def has_file(folder: int, path: str) -> bool:
    """Whether anything at all is at `path`, links not followed."""
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def content_digest(content: bytes | None) -> str:
    """A short text that is equal for equal content; None stands for no file."""
    return "none" if content is None else blake2b(content, digest_size=16).hexdigest()
