"""The host's processors and memory, read from /proc; on a system without it the figures are simply absent."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of the host's memory; what the kernel could reclaim at once does not count as used."""

    total_bytes: int
    used_bytes: int


class HostFigures:
    """Reads /proc. Confined to: the event loop (a read takes tens of microseconds and never waits for a disk)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._stat = proc / "stat"
        self._meminfo = proc / "meminfo"
        self._ticks = self._read_ticks()
        self._utilization = 0.0

    def cpu_utilization(self) -> float | None:
        """Share of all processors that was busy since the last call (at first: since construction), 0 to 1; None where unreadable."""
        now = self._read_ticks()
        if now is None or self._ticks is None:
            return None
        busy, total = now[0] - self._ticks[0], now[1] - self._ticks[1]
        if total > 0:
            # The kernel may correct iowait downwards, which would show as more busy than total time.
            self._utilization = min(max(busy / total, 0.0), 1.0)
            self._ticks = now
        return self._utilization

    def memory(self) -> HostMemory | None:
        """Memory of the host; None where unreadable."""
        try:
            lines = self._meminfo.read_text().splitlines()
            kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("MemTotal:", "MemAvailable:"))}
            total, available = kib["MemTotal"], kib["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None
        return HostMemory(total_bytes=total * 1024, used_bytes=(total - available) * 1024)

    def _read_ticks(self) -> tuple[int, int] | None:
        """Busy and total ticks of all processors since boot."""
        try:
            with self._stat.open() as stat:
                fields = stat.readline().split()
            # user nice system idle iowait irq softirq steal; the guest columns after them are already part of user and nice.
            ticks = [int(field) for field in fields[1:9]]
            total = sum(ticks)
            return total - ticks[3] - ticks[4], total
        except (OSError, ValueError, IndexError):
            return None
