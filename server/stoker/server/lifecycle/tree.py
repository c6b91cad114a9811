"""What lies below a folder, without opening a file: the raw material of fingerprints and private copies."""

import enum
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

from stoker.backends.api.errors import ModelLoadError
from stoker.server.lifecycle.bounds import MAX_DEPTH, MAX_FILES_PER_VERSION
from stoker.server.lifecycle.folder import Folder, open_beneath
from stoker.server.lifecycle.names import shown


class EntryKind(enum.Enum):
    """What an entry is, links not followed."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    SPECIAL = "special file"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file or folder.

    Attributes:
        path: Relative to the folder listed, with `/`.
        kind: Links are not followed.
        size_bytes: 0 for folders.
        mtime_ns: 0 for folders, whose time says nothing that their entries do not.
        inode: Number of the inode; 0 for folders.
        links: Names that the inode has.
        device: Of the inode; 0 for folders.
        source: Where links are followed: the path below the root, free of links, at which it really lies; else empty.
    """

    path: str
    kind: EntryKind
    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    links: int = 1
    device: int = 0
    source: str = ""


def kind_of(mode: int) -> EntryKind:
    """The kind that `st_mode` tells."""
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    if stat.S_ISDIR(mode):
        return EntryKind.FOLDER
    return EntryKind.LINK if stat.S_ISLNK(mode) else EntryKind.SPECIAL


def entry_of(path: str, status: os.stat_result, source: str = "") -> TreeEntry:
    """The entry that `lstat` or `fstat` tells."""
    kind = kind_of(status.st_mode)
    if kind is EntryKind.FOLDER:
        return TreeEntry(path, kind, source=source)
    return TreeEntry(path, kind, status.st_size, status.st_mtime_ns, status.st_ino, status.st_nlink, device=status.st_dev, source=source)


@contextmanager
def open_entry(folder: Folder, entry: TreeEntry) -> Iterator[int]:
    """A descriptor, for reading, of the file `entry` from the result of `list_tree(folder)`.

    Raises:
        OSError: it cannot be opened; ELOOP or ENOTDIR where it, or a folder around it, has become a link.
    """
    descriptor, path = (folder.descriptor, entry.path) if folder.root is None else (folder.root.descriptor, entry.source)
    with open_beneath(descriptor, path) as opened:
        yield opened


def list_tree(folder: Folder) -> tuple[TreeEntry, ...]:
    """Every file and folder below `folder`, sorted by path. Where links are followed, a link appears as its target.

    Raises:
        ModelLoadError: more entries or levels than `bounds` allows, a name that is not UTF-8, or a link that may not be followed.
        OSError: a folder cannot be read.
    """
    entries: list[TreeEntry] = []
    _list(folder, "", 0, entries)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _list(folder: Folder, prefix: str, depth: int, entries: list[TreeEntry]) -> None:
    for status, name in _statuses(folder.descriptor):
        entry = _entry(folder, prefix + name, name, status)
        entries.append(entry)
        if len(entries) > MAX_FILES_PER_VERSION:
            raise ModelLoadError(f"more than {MAX_FILES_PER_VERSION} files and folders")
        if entry.kind is EntryKind.FOLDER:
            if depth == MAX_DEPTH:
                raise ModelLoadError(f"folder {shown(entry.path)} lies more than {MAX_DEPTH} folders deep")
            with folder.folder(name) as inner:
                _list(inner, f"{entry.path}/", depth + 1, entries)


def _entry(folder: Folder, path: str, name: str, status: os.stat_result) -> TreeEntry:
    if folder.root is None:
        return entry_of(path, status)
    source = folder.resolve(name, path)
    return entry_of(path, folder.root.status(source) if stat.S_ISLNK(status.st_mode) else status, source)


def _statuses(folder: int) -> Iterable[tuple[os.stat_result, str]]:
    with os.scandir(folder) as found:
        for item in found:
            try:
                item.name.encode()
            except UnicodeEncodeError as error:
                raise ModelLoadError(f"the name of file {item.name!a} is not UTF-8") from error
            yield item.stat(follow_symlinks=False), item.name


def fingerprint(entries: Iterable[TreeEntry]) -> str:
    """A short text that is equal for equal listings: names, kinds, sizes, modification times, inodes."""
    digest = blake2b(digest_size=16)
    for entry in entries:
        digest.update(f"{entry.path}\0{entry.kind.value}\0{entry.size_bytes}\0{entry.mtime_ns}\0{entry.inode}\0{entry.links}\n".encode())
    return digest.hexdigest()
