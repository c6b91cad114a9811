"""Private copies of version folders, and the area on disk that holds them. A backend reads only these copies.

A killed process leaves its folder behind; the next process that starts in the same parent folder removes it. A running process holds a lock
on its folder (flock), which the kernel releases at the end of the process. Process ids would not work: a server in another container may
share the parent folder.

Native model readers follow links and open companion files by name. A copy therefore holds only plain files that were copied here: no
symbolic link, no hard link (its inode may belong to a file outside) and no special file. If the operator allows links, their targets below
the repository's root are copied in their place. A copy is also stable: later changes of the repository do not affect a loaded model. Every
file is opened through its folder's descriptor and checked on the opened descriptor, and the listings before and after the copy are
compared, so that changes during the copy are detected.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.server.lifecycle.folder import (
    LINKS_HINT,
    EntryKind,
    Folder,
    Root,
    TreeEntry,
    entry_at,
    entry_of,
    list_tree,
    open_entry,
    open_within,
)
from stoker.server.lifecycle.settings import MAX_FILE_BYTES, MAX_FILES_PER_VERSION, MAX_VERSION_BYTES, relative_file, shown

_NAME = re.compile(r"stoker-(\d+)-[a-z0-9_]+")
#: Another process may remove a new folder as abandoned before it is locked.
_ATTEMPTS: Final = 10


@contextlib.contextmanager
def snapshot_area(parent: Path | None) -> Iterator[Path]:
    """Makes a new folder, readable by this user only, below `parent` (None: the system's temporary folder).

    Raises:
        OSError: `parent` cannot be written.
    """
    root = Path(tempfile.gettempdir()) if parent is None else parent
    root.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(root)
    area, lock = _locked_area(root)
    try:
        yield area
    finally:
        shutil.rmtree(area, ignore_errors=True)
        os.close(lock)


def _locked_area(root: Path) -> tuple[Path, int]:
    """Makes a new folder, and opens the descriptor that holds its lock.

    On a file system without locks there is none; no process removes folders as abandoned there.
    """
    for _ in range(_ATTEMPTS):
        area = Path(tempfile.mkdtemp(prefix=f"stoker-{os.getpid()}-", dir=root))
        descriptor = _opened(area)
        if descriptor is None:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:
            return area, descriptor
        if area.exists():
            return area, descriptor
        os.close(descriptor)
    raise OSError(f"{root}: another process removes every new folder")


def _remove_abandoned(root: Path) -> None:
    for entry in os.scandir(root):
        if not (_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)):
            continue
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            descriptor = _opened(Path(entry.path))
            if descriptor is None:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            except OSError:
                continue  # a running process holds the lock, or the file system has no locks
            finally:
                os.close(descriptor)


def _opened(area: Path) -> int | None:
    try:
        return os.open(area, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None


log = logging.getLogger("stoker.lifecycle")

_CHUNK_BYTES = 8 << 20
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CANNOT_COPY_RANGE = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})
_CHANGED = "{} changed while it was read; it is loaded again once it stays as it is"

CopyHook = Callable[[str], object]


def take_snapshot(
    version_dir: Path,
    into: Path,
    *,
    overrides: Mapping[str, bytes] | None = None,
    links_root: Path | None = None,
    selected: Mapping[str, str] | None = None,
    after_each: CopyHook | None = None,
) -> ModelFiles:
    """Copies a version folder to a new private folder below `into`.

    Args:
        version_dir: `<root>/<model>/<version>`; neither of the last two parts may be a link, unless links are followed.
        into: A folder of this process; the copy gets a new name in it, readable by this user only.
        overrides: If not empty, the copy holds only these files (by relative path), and the version folder is not read.
        links_root: `version_dir` or a folder above it: links are followed to targets below it, and the targets are copied. A file with
            several names is copied if all of them are below it. None: links are not followed.
        selected: The files of `version_dir` to copy, by their name in the copy; None: all of them.
        after_each: Called with each file's path after its copy; a hook for tests.

    Returns:
        The copy; `discard` removes it when it is no longer used.

    Raises:
        ModelLoadError: the folder is gone, holds something other than plain files, exceeds a bound, changed meanwhile, or the copy does
            not fit on the disk. Nothing is left behind.
        InvalidRequest: an override's path is not a clean relative path.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="version-", dir=into))
    except OSError as error:
        raise ModelLoadError(f"no folder can be made for the private copy: {error.strerror}") from error
    try:
        if overrides:
            sizes = _write_overrides(overrides, root)
        else:
            sizes = _copy_version(version_dir, root, links_root, selected, after_each or _nothing)
    except BaseException:
        _remove(root)
        raise
    return ModelFiles(root, sizes)


def copy_tree(
    source: Folder, root: Path, after_each: CopyHook | None = None, *, what: str = "the version folder", hint: str = ""
) -> dict[str, int]:
    """Copies the files below the folder `source` to the folder `root`; returns their sizes by relative path.

    `what` is the name of the source in errors; `hint` is the end of errors about links.

    Raises:
        ModelLoadError: as `take_snapshot`. OSError: a folder cannot be read.
    """
    before = list_tree(source)
    _reject_invalid(before, source.root, hint)
    sizes = {entry.path: _copy(source, entry, root, after_each or _nothing) for entry in before if entry.kind is EntryKind.FILE}
    if list_tree(source) != before:
        raise ModelLoadError(_CHANGED.format(what))
    return sizes


def _copy_selected(source: Folder, root: Path, selected: Mapping[str, str], after_each: CopyHook, hint: str) -> dict[str, int]:
    """Copies the files `selected` of the folder `source`, by their name in the copy; returns their sizes by that name."""
    listed = {name: entry_at(source, path) for name, path in selected.items()}
    _reject_invalid(list(listed.values()), source.root, hint)
    return {name: _copy(source, entry, root, after_each, name) for name, entry in listed.items()}


def discard(files: ModelFiles) -> None:
    """Removes a copy. Blocks while the files are removed."""
    _remove(files.root)


def _nothing(path: str) -> None:
    """The default of `after_each`."""


def _remove(root: Path) -> None:
    try:
        shutil.rmtree(root)
    except OSError as error:
        log.warning("a private copy of model files could not be removed: %s", error)


def _copy_version(
    version_dir: Path, root: Path, links_root: Path | None, selected: Mapping[str, str] | None, after_each: CopyHook
) -> dict[str, int]:
    # The repository's root may be reached through links (the operator named it); below it no link may be followed unless links are allowed.
    top = version_dir.parent.parent if links_root is None else links_root
    try:
        with open_within(top, version_dir, follows_links=links_root is not None) as source:
            hint = LINKS_HINT if links_root is None else ""
            if selected is not None:
                return _copy_selected(source, root, selected, after_each, hint)
            return copy_tree(source, root, after_each, hint=hint)
    except OSError as error:
        raise ModelLoadError(f"the version folder cannot be read: {_reason(error)}") from error


def _reject_invalid(entries: Sequence[TreeEntry], root: Root | None, hint: str) -> None:
    """Raises for the first entry that a private copy must not hold, and if the entries together are too large."""
    for entry in entries:
        if entry.kind in (EntryKind.LINK, EntryKind.SPECIAL):
            allowed = hint if entry.kind is EntryKind.LINK else ""
            raise ModelLoadError(
                f"{shown(entry.path)} is a {entry.kind.value}; a version folder may hold only plain files and folders{allowed}"
            )
        if entry.kind is EntryKind.FILE and entry.links != 1 and root is None:
            raise ModelLoadError(f"{shown(entry.path)} is a hard link (its file has {entry.links} names); copy the file instead{hint}")
        if entry.size_bytes > MAX_FILE_BYTES:
            raise ModelLoadError(f"{shown(entry.path)} has {entry.size_bytes} bytes; the limit is {MAX_FILE_BYTES}")
    if root is not None:
        _reject_names_elsewhere([entry for entry in entries if entry.kind is EntryKind.FILE and entry.links != 1], root)
    total = sum(entry.size_bytes for entry in entries)
    if total > MAX_VERSION_BYTES:
        raise ModelLoadError(f"the version's files have {total} bytes together; the limit is {MAX_VERSION_BYTES}")


def _reject_names_elsewhere(entries: Sequence[TreeEntry], root: Root) -> None:
    """Raises for the first file that also has a name outside the root: it may belong to another user."""
    if not entries:
        return
    counts = root.names_of({(entry.device, entry.inode) for entry in entries})
    for entry in entries:
        inside = counts[entry.device, entry.inode]
        if inside != entry.links:
            raise ModelLoadError(
                f"{shown(entry.path)} is a hard link (its file has {entry.links} names, {inside} of them in the repository); "
                "copy the file instead"
            )


def _copy(folder: Folder, entry: TreeEntry, root: Path, after_each: CopyHook, name: str = "") -> int:
    """Copies one file to the path `name` below `root` (default: its own path); returns its size."""
    try:
        with open_entry(folder, entry) as source:
            if entry_of(entry.path, os.fstat(source), entry.source) != entry:
                raise ModelLoadError(_CHANGED.format(shown(entry.path)))
            copied = _write(root, name or entry.path, lambda target: _transfer(source, target, entry.size_bytes))
            after_each(entry.path)
            if copied != entry.size_bytes or entry_of(entry.path, os.fstat(source), entry.source) != entry:
                raise ModelLoadError(_CHANGED.format(shown(entry.path)))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise ModelLoadError(_CHANGED.format(shown(entry.path))) from error
        raise ModelLoadError(f"{shown(entry.path)} cannot be read: {_reason(error)}") from error
    return copied


def _transfer(source: int, target: int, size_bytes: int) -> int:
    """Copies at most `size_bytes` + 1 bytes, in the kernel if possible; returns the number of bytes copied."""
    copied = 0
    while copied <= size_bytes:
        moved = _move(source, target, min(_CHUNK_BYTES, size_bytes + 1 - copied))
        if moved == 0:
            break
        copied += moved
    return copied


def _move(source: int, target: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            moved = os.copy_file_range(source, target, count)
        except OSError as error:
            if error.errno not in _CANNOT_COPY_RANGE:
                raise
        else:
            if moved:
                return moved
    # Some file systems cannot copy ranges, and some return 0 although the file has more: plain reads decide.
    data = os.read(source, min(count, 1 << 20))
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
    return len(data)


def _write(root: Path, path: str, fill: Callable[[int], int]) -> int:
    """Makes the file `path` of the copy with its folders; `fill` writes to the descriptor that it receives and returns the size."""
    target_path = root / path
    try:
        target_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = os.open(target_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            return fill(target)
        finally:
            os.close(target)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise ModelLoadError(
                f"no space for the private copy of {shown(path)}: {error.strerror} ({errno.errorcode[error.errno]})"
            ) from error
        raise ModelLoadError(f"{shown(path)} cannot be copied: {_reason(error)}") from error


def _write_overrides(overrides: Mapping[str, bytes], root: Path) -> dict[str, int]:
    if len(overrides) > MAX_FILES_PER_VERSION:
        raise ModelLoadError(f"{len(overrides)} files were sent; the limit is {MAX_FILES_PER_VERSION}")
    sizes: dict[str, int] = {}
    for name, content in overrides.items():
        path = relative_file(name).as_posix()
        sizes[path] = _write(root, path, _writer(content))
    return sizes


def _writer(content: bytes) -> Callable[[int], int]:
    def fill(target: int) -> int:
        left = memoryview(content)
        while left:
            left = left[os.write(target, left) :]
        return len(content)

    return fill


def _reason(error: OSError) -> str:
    """The reason of an error without paths of this host, which clients must not see."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is, or leads through, a symbolic link"
    return error.strerror or type(error).__name__
