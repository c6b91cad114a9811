"""What lies below a folder, without following a link or opening a file: the raw material of fingerprints and private copies.

Everything goes by folder descriptors (`openat`), so that a folder swapped for a link between two looks is noticed instead of followed.
"""

import enum
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from backends.api.errors import ModelLoadError
from server.lifecycle.bounds import MAX_DEPTH, MAX_FILES_PER_VERSION
from server.lifecycle.names import shown

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    """

    path: str
    kind: EntryKind
    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    links: int = 1


def kind_of(mode: int) -> EntryKind:
    """The kind that `st_mode` tells."""
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    if stat.S_ISDIR(mode):
        return EntryKind.FOLDER
    return EntryKind.LINK if stat.S_ISLNK(mode) else EntryKind.SPECIAL


def entry_of(path: str, status: os.stat_result) -> TreeEntry:
    """The entry that `lstat` or `fstat` tells."""
    kind = kind_of(status.st_mode)
    if kind is EntryKind.FOLDER:
        return TreeEntry(path, kind)
    return TreeEntry(path, kind, status.st_size, status.st_mtime_ns, status.st_ino, status.st_nlink)


@contextmanager
def open_folder(path: Path | str, *, inside: int | None = None, follow: bool = False) -> Iterator[int]:
    """A descriptor of the folder `path`, relative to the descriptor `inside`; unless `follow`, its last part must not be a link.

    Raises:
        OSError: it cannot be opened; ELOOP or ENOTDIR where it is a link or no folder.
    """
    descriptor = os.open(path, _FOLDER & ~os.O_NOFOLLOW if follow else _FOLDER, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_beneath(folder: int, path: str) -> Iterator[int]:
    """A descriptor, for reading, of the file `path` below `folder`; no part of the path may be a link. Never blocks on a FIFO.

    Raises:
        OSError: it cannot be opened.
    """
    parents = path.split("/")
    name = parents.pop()
    opened: list[int] = []
    try:
        for parent in parents:
            opened.append(os.open(parent, _FOLDER, dir_fd=opened[-1] if opened else folder))
        opened.append(os.open(name, _FILE, dir_fd=opened[-1] if opened else folder))
        yield opened[-1]
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def list_tree(folder: int) -> tuple[TreeEntry, ...]:
    """Every file and folder below the descriptor `folder`, sorted by path.

    Raises:
        ModelLoadError: more entries or levels than `bounds` allows, or a name that is not UTF-8.
        OSError: a folder cannot be read.
    """
    entries: list[TreeEntry] = []
    _list(folder, "", 0, entries)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _list(folder: int, prefix: str, depth: int, entries: list[TreeEntry]) -> None:
    for status, name in _statuses(folder):
        entry = entry_of(prefix + name, status)
        entries.append(entry)
        if len(entries) > MAX_FILES_PER_VERSION:
            raise ModelLoadError(f"more than {MAX_FILES_PER_VERSION} files and folders")
        if entry.kind is EntryKind.FOLDER:
            if depth == MAX_DEPTH:
                raise ModelLoadError(f"folder {shown(entry.path)} lies more than {MAX_DEPTH} folders deep")
            with open_folder(name, inside=folder) as inner:
                _list(inner, f"{entry.path}/", depth + 1, entries)


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
