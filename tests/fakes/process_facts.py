"""Facts of the process table: descriptors, memory and children of a process. Linux only."""

import os
from pathlib import Path


def descriptors(pid: "int | str" = "self") -> int:
    """The number of open descriptors."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_bytes(pid: "int | str" = "self") -> int:
    """The resident memory, bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shared_memory() -> set[str]:
    """The names in /dev/shm."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name."""
    try:
        # Not by `Path`, which takes most of the time of a loop that reads all processes.
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    fields = _status(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid: int) -> set[int]:
    """The processes that `pid` has started and that run."""
    found = set()
    for number in _all_processes():
        fields = _status(number)
        if fields and int(fields[1]) == pid and fields[0] not in "ZX":
            found.add(number)
    return found


def workers(pid: int) -> set[int]:
    """The worker processes of the server `pid`."""
    return {number for number in children(pid) if b"worker/bootstrap.py" in _command(number)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def group(pgid: int) -> set[int]:
    """The processes of a process group that run."""
    return {number for number in _all_processes() if (fields := _status(number)) and int(fields[2]) == pgid and fields[0] not in "ZX"}


def threads(pid: "int | str" = "self") -> int:
    """The number of threads."""
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
