"""CPU time and memory of a process and its descendants.

The tree is listed once, before a window. At the window's edges only its members are read, which takes microseconds. CPU time is that of the
kernel's clock of each process: exact to the nanosecond, and it includes threads that have ended (the files `task/*/schedstat` are the same
counter for each living thread). A child that ends and is waited for in between is not lost: the kernel adds its time to its parent's.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat counted from the field after the command name (`man 5 proc`): state is the first.
_PARENT, _CUTIME, _CSTIME = 1, 13, 14
#: CPUCLOCK_SCHED of linux/posix-timers.h: the clock of all threads of a process (`man 3 clock_getcpuclockid`).
_PROCESS_CLOCK = 2


def cpu_clock_ns(pid: int) -> int:
    """CPU time of all threads of a process since it started, in nanoseconds; 0: it does not exist."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes `pids`, as they were when the tree was listed."""

    pids: tuple[int, ...]
    proc: Path = PROC
    clock_ns: Callable[[int], int] = cpu_clock_ns

    def cpu_s(self) -> float:
        """User and system time since the start, including children that were waited for, seconds; 0 for a process that has ended."""
        ticks = 0
        for pid in self.pids:
            fields = _stat(self.proc, pid)
            if fields is not None:
                ticks += int(fields[_CUTIME]) + int(fields[_CSTIME])
        return ticks / _TICKS_PER_S + sum(self.clock_ns(pid) for pid in self.pids) / 1e9

    def rss_bytes(self) -> int:
        """Resident memory, bytes; pages that processes share count once for each."""
        return sum(_rss_bytes(self.proc, pid) for pid in self.pids)


def process_tree(root: int, proc: Path = PROC, clock_ns: Callable[[int], int] = cpu_clock_ns) -> ProcessTree:
    """The process `root` and everything that descends from it."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids(proc):
        fields = _stat(proc, pid)
        if fields is not None:
            children.setdefault(int(fields[_PARENT]), []).append(pid)
    tree, frontier = [root], [root]
    while frontier:
        found = children.get(frontier.pop(), [])
        tree += found
        frontier += found
    return ProcessTree(tuple(tree), proc, clock_ns)


def machine_cpu_s(proc: Path = PROC) -> float:
    """CPU time that all cores together have spent on anything, or were denied by a hypervisor, since the machine started."""
    line = (proc / "stat").read_text(encoding="ascii").splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(each) for each in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _all_pids(proc: Path) -> Iterable[int]:
    return (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def _stat(proc: Path, pid: int) -> list[str] | None:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in brackets and may contain spaces and brackets itself: the fields follow the last bracket.
    return text.rpartition(")")[2].split()


def _rss_bytes(proc: Path, pid: int) -> int:
    try:
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
