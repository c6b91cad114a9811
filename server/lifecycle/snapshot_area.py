"""Where this process keeps its private copies of model files: a folder of its own, removed at exit.

A process that was killed could not remove its folder; the next one that starts in the same place does it, by the process id in the name.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"stoker-(\d+)-[a-z0-9_]+")


@contextmanager
def snapshot_area(parent: Path | None) -> Iterator[Path]:
    """A fresh folder, readable by this user only, below `parent` (None: the system's temporary folder).

    Raises:
        OSError: `parent` cannot be written.
    """
    root = Path(tempfile.gettempdir()) if parent is None else parent
    root.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(root)
    area = Path(tempfile.mkdtemp(prefix=f"stoker-{os.getpid()}-", dir=root))
    try:
        yield area
    finally:
        shutil.rmtree(area, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    for entry in os.scandir(root):
        match = _NAME.fullmatch(entry.name)
        is_ours = match and entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        if match and is_ours and not _is_alive(int(match[1])):
            shutil.rmtree(entry.path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
