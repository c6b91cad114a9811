"""Opens folders of a repository by descriptor and lists the files below them.

Every path is opened by descriptors (`openat`), one component at a time and none of them through a link, so that a folder replaced by a link
between two steps is an error and is not followed. If the operator allows links, a link is first resolved, component by component, to the
path below the root that it leads to. That path is then opened in the same way from the root, so that nothing outside the root can be
reached.
"""

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.server.lifecycle.settings import MAX_DEPTH, MAX_FILES_PER_VERSION, MAX_LINKS, MAX_ROOT_ENTRIES, shown

#: The end of a message about a link that is rejected because links are not allowed.
LINKS_HINT = "; --allow-links=within-root allows links that stay within the repository"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LinkRejected(ModelLoadError):
    """A link that is not followed. The text gives the link's path below the root, not its target."""


@dataclass(frozen=True, slots=True)
class Root:
    """An opened root below which links are followed.

    Attributes:
        descriptor: Descriptor of the root folder.
        paths: The root's absolute paths, with links resolved and as given: a target below either is below the root.
    """

    descriptor: int
    paths: tuple[str, ...]

    def resolve(self, at: str, path: str, what: str) -> str:
        """The path below the root, free of links, that `path` leads to.

        Args:
            at: Where `path` begins: a path below the root, free of links.
            path: The path, with `/`.
            what: The name of the path in errors.

        Raises:
            LinkRejected: it leads out of the root, to nothing, or through too many links.
            OSError: something on the way cannot be read.
        """
        found = at.split("/") if at else []
        pending = path.split("/")[::-1]
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not found:
                    raise LinkRejected(f"{shown(what)} is a link that leads out of the repository")
                found.pop()
                continue
            try:
                target = os.readlink("/".join([*found, part]), dir_fd=self.descriptor)
            except FileNotFoundError as error:
                if links:
                    raise LinkRejected(f"{shown(what)} is a link that leads to nothing") from error
                raise
            except OSError:
                # EINVAL: no link. Opening it will report any other error.
                found.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise LinkRejected(f"{shown(what)} leads through more than {MAX_LINKS} links")
            if target.startswith("/"):
                found, target = [], self._below(target, what)
            pending.extend(target.split("/")[::-1])
        return "/".join(found)

    def status(self, path: str) -> os.stat_result:
        """The status of the entry at `path`, which is free of links; of the link itself if one has appeared there.

        Raises:
            OSError: nothing is there, or a folder around it has become a link.
        """
        parent, _, name = path.rpartition("/")
        if not name:
            return os.fstat(self.descriptor)
        with open_path(self.descriptor, parent) as folder:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def names_of(self, files: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """By device and inode, the number of names that each of `files` has below the root, in readable folders.

        Raises:
            LinkRejected: the root holds more files than the bound of this search.
        """
        counts = dict.fromkeys(files, 0)
        inodes = {inode for _, inode in files}
        pending = [""]
        seen = 0
        while pending:
            at = pending.pop()
            with contextlib.suppress(OSError), open_path(self.descriptor, at) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ROOT_ENTRIES:
                        raise LinkRejected(f"the repository has more than {MAX_ROOT_ENTRIES} entries, too many to look for hard links in")
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{at}/{entry.name}" if at else entry.name)
                    elif entry.inode() in inodes:
                        status = entry.stat(follow_symlinks=False)
                        if (status.st_dev, status.st_ino) in counts:
                            counts[status.st_dev, status.st_ino] += 1
        return counts

    def _below(self, target: str, what: str) -> str:
        """The absolute `target` of the link `what`, as a path from the root."""
        for path in self.paths:
            if target == path or target.startswith(f"{path.rstrip('/')}/"):
                return target[len(path) :]
        raise LinkRejected(f"{shown(what)} is a link that leads out of the repository")


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened folder.

    Attributes:
        descriptor: Descriptor of the folder.
        root: The root below which links in the folder are followed; None: links are not followed.
        at: The folder's path below `root`, free of links.
    """

    descriptor: int
    root: Root | None = None
    at: str = ""

    def resolve(self, name: str, what: str = "") -> str:
        """The path below the root, free of links, of the entry `name`, which errors call `what`. Raises as `Root.resolve`.

        REQUIRES: links are followed.
        """
        assert self.root is not None
        return self.root.resolve(self.at, name, what or name)

    def status(self, name: str) -> os.stat_result:
        """The status of the entry `name`: of the link itself if it is one, unless links are followed.

        Raises:
            OSError: it is not there, or cannot be read. LinkRejected: a link may not be followed.
        """
        found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        if self.root is None or not stat.S_ISLNK(found.st_mode):
            return found
        return self.root.status(self.resolve(name))

    @contextmanager
    def folder(self, name: str) -> Iterator["Folder"]:
        """The subfolder `name`.

        Raises:
            OSError: it cannot be opened; ELOOP or ENOTDIR where it is a link or no folder. LinkRejected: a link may not be followed.
        """
        if self.root is None:
            with open_folder(name, inside=self.descriptor) as descriptor:
                yield Folder(descriptor)
            return
        at = self.resolve(name)
        with open_path(self.root.descriptor, at) as descriptor:
            yield Folder(descriptor, self.root, at)

    @contextmanager
    def file(self, path: str) -> Iterator[int]:
        """A descriptor, for reading, of the file `path`. Never blocks on a FIFO.

        Raises:
            OSError: it cannot be opened; ELOOP where it is a link. LinkRejected: a link may not be followed.
        """
        if self.root is None:
            with open_beneath(self.descriptor, path) as descriptor:
                yield descriptor
            return
        with open_beneath(self.root.descriptor, self.resolve(path)) as descriptor:
            yield descriptor


@contextmanager
def open_root(path: Path, *, follows_links: bool = False) -> Iterator[Folder]:
    """Opens the folder `path`, which may be a link; with `follows_links`, links below it are followed to targets below it.

    Raises:
        OSError: it cannot be opened.
    """
    with open_folder(path, follow=True) as descriptor:
        if not follows_links:
            yield Folder(descriptor)
            return
        paths = dict.fromkeys((os.path.realpath(path), os.path.abspath(path)))  # noqa: PTH100 - compared with link targets as text
        yield Folder(descriptor, Root(descriptor, tuple(paths)))


@contextmanager
def open_within(root: Path, folder: Path, *, follows_links: bool) -> Iterator[Folder]:
    """Opens `folder`, which is `root` or below it, through each folder between.

    Raises:
        OSError: one cannot be opened. LinkRejected: a link may not be followed.
    """
    with ExitStack() as opened:
        found = opened.enter_context(open_root(root, follows_links=follows_links))
        for part in folder.relative_to(root).parts:
            found = opened.enter_context(found.folder(part))
        yield found


@contextmanager
def open_folder(path: Path | str, *, inside: int | None = None, follow: bool = False) -> Iterator[int]:
    """A descriptor of the folder `path`, relative to the descriptor `inside`; unless `follow`, its last component must not be a link.

    Raises:
        OSError: it cannot be opened; ELOOP or ENOTDIR where it is a link or no folder.
    """
    descriptor = os.open(path, _FOLDER & ~os.O_NOFOLLOW if follow else _FOLDER, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_path(folder: int, path: str) -> Iterator[int]:
    """A descriptor of the folder `path` (empty: of itself) below `folder`; no part of the path may be a link.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.dup(folder)
    try:
        for part in path.split("/") if path else ():
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_beneath(folder: int, path: str) -> Iterator[int]:
    """A descriptor, for reading, of the file `path` below `folder`; no part of the path may be a link. Never blocks on a FIFO.

    Raises:
        OSError: it cannot be opened.
    """
    parent, _, name = path.rpartition("/")
    with open_path(folder, parent) as around:
        descriptor = os.open(name, _FILE, dir_fd=around)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class EntryKind(enum.Enum):
    """The type of a directory entry; links are not followed."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    SPECIAL = "special file"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file or folder.

    Attributes:
        path: Path relative to the listed folder, with `/`.
        kind: The type of the entry; links are not followed.
        size_bytes: 0 for folders.
        mtime_ns: Modification time; 0 for folders, whose time adds nothing to that of their entries.
        inode: Inode number; 0 for folders.
        links: Number of names of the inode.
        device: Device number; 0 for folders.
        source: If links are followed: the entry's real path below the root, free of links; else empty.
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
    """The kind of entry that `st_mode` gives."""
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    if stat.S_ISDIR(mode):
        return EntryKind.FOLDER
    return EntryKind.LINK if stat.S_ISLNK(mode) else EntryKind.SPECIAL


def entry_of(path: str, status: os.stat_result, source: str = "") -> TreeEntry:
    """The entry for a result of `lstat` or `fstat`."""
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


def entry_at(folder: Folder, name: str) -> TreeEntry:
    """The entry `name` of `folder`; a link, where links are followed, as its target.

    Raises:
        OSError: it is not there, or cannot be read. LinkRejected: a link may not be followed.
    """
    return _entry(folder, name, name, os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False))


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


@contextmanager
def open_sibling(model_dir: Path, path: str, links_root: Path | None, *, what: str, where: str) -> Iterator[int]:
    """A descriptor, for reading, of the plain file `path` below the model folder.

    Args:
        model_dir: The model folder.
        path: Path relative to the model folder, with `/`.
        links_root: The folder below which link targets may lie; None: links are not followed.
        what: The name of the file in errors.
        where: The name of the expected place in errors.

    Raises:
        ModelLoadError: it is missing, no plain file, or reached through a link that is not followed.
    """
    try:
        with (
            open_within(links_root or model_dir, model_dir, follows_links=links_root is not None) as folder,
            folder.file(path) as descriptor,
        ):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ModelLoadError(f"{what}: not a regular file inside {where}")
            yield descriptor
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise ModelLoadError(f"{what}: not a regular file inside {where}") from error
        raise ModelLoadError(f"{what}: {error.strerror}") from error
