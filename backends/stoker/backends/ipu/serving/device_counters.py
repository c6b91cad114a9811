"""`DeviceCounters`: what the simulated IPUs of the server did, by the id of a device's first IPU; never falls while devices come and go."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from stoker.backends.ipu.runtime import Device, DeviceMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What serving adds to a device's own metrics.

    Attributes:
        batches: Batches answered or failed.
        failed_batches: Those that failed.
        queue_wait_s: Time batches spent behind earlier ones of their executable that had not ended.
    """

    batches: int = 0
    failed_batches: int = 0
    queue_wait_s: float = 0.0


class DeviceCounters:
    """Any thread may use it."""

    def __init__(self, ipus: int) -> None:
        """Of a system of `ipus`."""
        self.ipus = ipus
        self._lock = threading.Lock()
        self._attached: dict[int, Device] = {}
        self._retired: dict[int, DeviceMetrics] = {}
        self._served: dict[int, Served] = {}
        self._faults: dict[tuple[int, str], int] = {}

    def attach(self, device: Device) -> None:
        """Counts what `device` counts from here on."""
        with self._lock:
            self._attached[device.id] = device

    def retire(self, device: Device) -> None:
        """Keeps what `device` counted: the next one on its IPUs begins anew."""
        with self._lock:
            if self._attached.pop(device.id, None) is not None:
                self._retired[device.id] = _sum(self._retired.get(device.id, DeviceMetrics()), device.metrics)

    def devices(self) -> Mapping[int, DeviceMetrics]:
        """What all devices, by first IPU, counted together."""
        with self._lock:
            return {
                number: _sum(self._retired.get(number, DeviceMetrics()), device.metrics if device else DeviceMetrics())
                for number in sorted({*self._attached, *self._retired})
                for device in (self._attached.get(number),)
            }

    def count_batch(self, device_id: int, *, queue_wait_s: float, has_failed: bool) -> None:
        """Adds a batch."""
        with self._lock:
            now = self._served.get(device_id, Served())
            self._served[device_id] = replace(
                now,
                batches=now.batches + 1,
                failed_batches=now.failed_batches + has_failed,
                queue_wait_s=now.queue_wait_s + queue_wait_s,
            )

    def count_fault(self, device_id: int, kind: str) -> None:
        """Adds a failure of the device."""
        with self._lock:
            self._faults[device_id, kind] = self._faults.get((device_id, kind), 0) + 1

    def served(self) -> Mapping[int, Served]:
        """By device id."""
        with self._lock:
            return dict(self._served)

    def faults(self) -> Mapping[tuple[int, str], int]:
        """By device id and kind."""
        with self._lock:
            return dict(self._faults)


def _sum(first: DeviceMetrics, second: DeviceMetrics) -> DeviceMetrics:
    return DeviceMetrics(**{each.name: getattr(first, each.name) + getattr(second, each.name) for each in fields(DeviceMetrics)})
