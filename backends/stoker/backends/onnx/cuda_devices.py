"""CUDA devices of this host and their figures, read by nvidia-ml-py, which is an extra (`gpu`).

CUDA numbers the devices that CUDA_VISIBLE_DEVICES names from 0; NVML numbers all of them. Without nvidia-ml-py the devices are counted by
what the driver shows under /proc, and there are no figures.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.backends.api.backend import Figure

log = logging.getLogger("stoker.backends.onnxruntime")

#: Seconds between two readings, as Triton's `--metrics-interval-ms`.
READ_EVERY_S = 2.0
#: Without a scrape for so long, seconds, the readings stop until the next one.
IDLE_S = 120.0

_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one device at one moment; None: the device does not tell.

    Attributes:
        uuid: Such as `GPU-5a...`.
        utilization: 0 to 1.
        memory_total_bytes: Of the device.
        memory_used_bytes: By all processes.
        power_watts: The present draw.
        power_limit_watts: The limit that is enforced.
        energy_joules: Since the driver was loaded.
    """

    uuid: str
    utilization: float | None = None
    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None


def nvml() -> Any | None:
    """The module of nvidia-ml-py, initialised; None: it is not installed, or finds no driver."""
    try:
        module = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception as error:  # noqa: BLE001 - it raises classes of its own, for a missing driver too
        log.debug("no nvidia-ml-py: %s", error)
        return None
    return module


class CudaDevices:
    """The CUDA devices that this process may use. Any thread may call it."""

    def __init__(
        self,
        *,
        load: Callable[[], Any | None] = nvml,
        environment: Mapping[str, str] = os.environ,
        driver: Path = _DRIVER,
        read_every_s: float = READ_EVERY_S,
    ) -> None:
        """`load` gives NVML's module; `driver` is the folder that has one entry for each device."""
        self._load = load
        self._environment = environment
        self._driver = driver
        self._read_every_s = read_every_s
        self._lock = threading.Lock()
        self._handles: list[Any] | None = None
        self._nvml: Any | None = None
        self._readings: tuple[Reading, ...] = ()
        self._first_joules: dict[str, float] = {}
        self._reader: threading.Thread | None = None
        self._scrapes = 0

    @property
    def count(self) -> int:
        """How many there are."""
        handles = self._found()
        if self._nvml is not None:
            return len(handles)
        try:
            present = len(list(self._driver.iterdir()))
        except OSError:
            return 0
        visible = self._visible()
        return present if visible is None else min(present, len(visible))

    def figures(self) -> Iterator[Figure]:
        """Triton's `nv_gpu_*` metrics at the last reading. Readings begin with the first call: each may take milliseconds."""
        self._scrapes += 1
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self._read_on, name="nvml", daemon=True)
            self._reader.start()
        for reading in self._readings:
            yield from _figures(reading, self._first_joules)

    def read(self) -> tuple[Reading, ...]:
        """Reads every device now; empty without nvidia-ml-py."""
        handles = self._found()
        self._readings = tuple(_reading(self._nvml, handle) for handle in handles)
        for reading in self._readings:
            if reading.energy_joules is not None:
                self._first_joules.setdefault(reading.uuid, reading.energy_joules)
        return self._readings

    def _read_on(self) -> None:
        unseen, scrapes = 0.0, self._scrapes
        stop = threading.Event()
        while self.read() and unseen < IDLE_S:
            stop.wait(self._read_every_s)
            unseen = unseen + self._read_every_s if scrapes == self._scrapes else 0.0
            scrapes = self._scrapes

    def _found(self) -> list[Any]:
        """NVML's handles by CUDA's number; empty without NVML."""
        with self._lock:
            if self._handles is None:
                self._handles = []
                self._nvml = self._load()
                if self._nvml is not None:
                    module = self._nvml
                    handles = [module.nvmlDeviceGetHandleByIndex(index) for index in range(module.nvmlDeviceGetCount())]
                    uuids = [_text(module.nvmlDeviceGetUUID(handle)) for handle in handles]
                    self._handles = _chosen(handles, uuids, self._visible())
            return self._handles

    def _visible(self) -> list[str] | None:
        """The entries of CUDA_VISIBLE_DEVICES; None: it is not set."""
        text = self._environment.get("CUDA_VISIBLE_DEVICES")
        return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _chosen(handles: list[Any], uuids: list[str], visible: list[str] | None) -> list[Any]:
    """CUDA's rule: numbers or beginnings of UUIDs; the first entry that is neither ends the list."""
    if visible is None:
        return handles
    chosen = []
    for entry in visible:
        numbers = [int(entry)] if entry.isdecimal() else [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        if len(numbers) != 1 or numbers[0] >= len(handles):
            break
        chosen.append(handles[numbers[0]])
    return chosen


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _reading(module: Any, handle: Any) -> Reading:
    def asked(read: Callable[[], float]) -> float | None:
        try:
            return float(read())
        except Exception:  # noqa: BLE001 - NVML raises for what a device does not support
            return None

    return Reading(
        _text(module.nvmlDeviceGetUUID(handle)),
        asked(lambda: module.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        asked(lambda: module.nvmlDeviceGetMemoryInfo(handle).total),
        asked(lambda: module.nvmlDeviceGetMemoryInfo(handle).used),
        asked(lambda: module.nvmlDeviceGetPowerUsage(handle) / 1000),
        asked(lambda: module.nvmlDeviceGetPowerManagementLimit(handle) / 1000),
        asked(lambda: module.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
    )


def _figures(reading: Reading, first_joules: Mapping[str, float]) -> Iterator[Figure]:
    labels = {"gpu_uuid": reading.uuid}
    energy = reading.energy_joules
    used = None if energy is None else energy - first_joules.get(reading.uuid, energy)
    rows = (
        ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", reading.utilization),
        ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", reading.memory_total_bytes),
        ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", reading.memory_used_bytes),
        ("nv_gpu_power_usage", "GPU power usage in watts", reading.power_watts),
        ("nv_gpu_power_limit", "GPU power management limit in watts", reading.power_limit_watts),
    )
    for name, text, value in rows:
        if value is not None:
            yield Figure(name=name, help=text, kind="gauge", value=value, labels=labels)
    if used is not None:
        text = "GPU energy consumption in joules since the server started"
        yield Figure(name="nv_energy_consumption", help=text, kind="counter", value=used, labels=labels)
