"""How many CPU cores this process may really use, and how instances share them.

`os.cpu_count` tells the machine's cores; a container sees them all and may use a few. What holds is the smaller of the affinity mask and
the CPU quota of the control group, version 2 or 1, the tightest of the process's own group and all above it.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNTS_V1 = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def usable_cores(*, root: Path = Path("/"), affinity: int | None = None) -> int:
    """Cores this process can keep busy, at least 1.

    A fractional quota counts as the next whole number: with 1.5 cores one thread would leave a third of them idle, while two are slowed
    a little.

    Args:
        root: Where `/proc` and `/sys` are looked for; a test gives its own tree.
        affinity: Cores the scheduler allows; None: asks the system.
    """
    allowed = affinity if affinity is not None else _affinity()
    quota = cpu_quota(root)
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def threads_for_instance(cores: int, instances: int) -> int:
    """Threads for each of `instances` that share `cores`: never more in all than there are cores, but one each at least."""
    return max(1, cores // max(1, instances))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The control group's CPU limit in cores; None if there is none, or none can be read."""
    quotas = [quota for own_group in _own_groups(root) for quota in _quotas(own_group) if quota is not None]
    return min(quotas, default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own_groups(root: Path) -> Iterator[list[Path]]:
    """For each hierarchy that may limit CPU time: the folders of this process's group and of those above it.

    Inside a container the path that `/proc/self/cgroup` names may be the host's, and the folder then does not exist; the mount point, which
    always comes last, is the container's own group.
    """
    hierarchies = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            mounts = [hierarchies, hierarchies / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [hierarchies / name for name in _MOUNTS_V1]
        else:
            continue
        parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
        for mount in mounts:
            yield [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quotas(folders: list[Path]) -> Iterator[float | None]:
    for folder in folders:
        quota, period = (*_text(folder / "cpu.max").split(), "", "")[:2]
        yield _cores(quota, period)
        yield _cores(_text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip())


def _cores(quota_us: str, period_us: str) -> float | None:
    """`max` (version 2), `-1` (version 1), and whatever is no number mean: no limit."""
    if not (quota_us.isdecimal() and period_us.isdecimal()) or int(period_us) == 0 or int(quota_us) == 0:
        return None
    return int(quota_us) / int(period_us)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
