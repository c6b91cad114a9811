"""The machine of a run: its description, and how busy it is."""

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from benchmarks.process_tree import machine_cpu_s, process_tree

_PACKAGES = ("stoker", "onnxruntime", "numpy", "grpcio", "protobuf", "uvicorn", "uvloop", "httptools", "orjson")


def describe_machine(proc: Path = Path("/proc")) -> dict[str, str]:
    """CPU, cores, memory, kernel, load before the run, and versions; nothing that identifies the machine or its owner."""
    facts = {
        "cpu": _field(proc / "cpuinfo", "model name") or platform.machine(),
        "cores usable": str(len(os.sched_getaffinity(0))),
        "memory": f"{int((_field(proc / 'meminfo', 'MemTotal') or '0').split()[0]) / 2**20:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "python": sys.version.split()[0],
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts


class CpuReading(NamedTuple):
    """CPU seconds at one moment.

    Attributes:
        servers_s: Of the servers and their descendants, seconds.
        own_s: Of this process and its ended children, the load generator, seconds.
        machine_s: Of all processes, seconds.
        at_s: The time of the reading, seconds.
    """

    servers_s: float
    own_s: float
    machine_s: float
    at_s: float

    @classmethod
    def of(cls, *pids: int) -> "CpuReading":
        """A reading of the servers with these processes."""
        own = os.times()
        own_s = time.process_time() + own.children_user + own.children_system
        return cls(sum(process_tree(pid).cpu_s() for pid in pids), own_s, machine_cpu_s(), time.monotonic())

    def foreign_cores_since(self, before: "CpuReading") -> float:
        """The cores that other processes used between two readings."""
        measured = self.servers_s + self.own_s - before.servers_s - before.own_s
        return max(0.0, self.machine_s - before.machine_s - measured) / max(self.at_s - before.at_s, 1e-9)


def _field(path: Path, name: str) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
