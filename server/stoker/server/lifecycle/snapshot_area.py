"""Where this process keeps its private copies of model files: a folder of its own, removed at exit.

A process that was killed could not remove its folder; the next one that starts in the same place does it. A living process holds a lock on
its folder (flock), which the kernel releases however the process ends. Process ids do not serve: a server in another container may share
the place.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NAME = re.compile(r"stoker-(\d+)-[a-z0-9_]+")
#: Another process may take a new folder for abandoned between its making and its lock.
_ATTEMPTS: Final = 10


@contextlib.contextmanager
def snapshot_area(parent: Path | None) -> Iterator[Path]:
    """A fresh folder, readable by this user only, below `parent` (None: the system's temporary folder).

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
    """A new folder and the descriptor that holds its lock.

    A file system without locks has none: there no process takes a folder for abandoned.
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
                continue  # a living process holds it, or the file system has no locks
            finally:
                os.close(descriptor)


def _opened(area: Path) -> int | None:
    try:
        return os.open(area, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
