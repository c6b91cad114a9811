"""The machine of a run: figures are ratios, but a reader wants to know of what."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("stoker", "onnxruntime", "numpy", "grpcio", "protobuf", "uvicorn", "uvloop", "httptools", "orjson")


def describe_machine(proc: Path = Path("/proc")) -> dict[str, str]:
    """CPU, cores, memory, kernel, load before the run, and versions; nothing that names the machine or its owner."""
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
