"""`Tally`: what the simulated IPUs of the server did, by the id of a device's first IPU; never falls while devices come and go."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from backends.ipu.runtime import Device, DeviceMetrics


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


class Tally:
    """Any thread may use it."""

    def __init__(self, ipus: int) -> None:
        """Of a system of `ipus`."""
        self.ipus = ipus
        self._lock = threading.Lock()
        self._retired: dict[int, DeviceMetrics] = {}
        self._served: dict[int, Served] = {}
        self._faults: dict[tuple[int, str], int] = {}

    def retire(self, device: Device) -> None:
        """Keeps what `device` counted: it is detached, and the next on its IPUs begins anew."""
        with self._lock:
            self._retired[device.id] = _sum(self._retired.get(device.id, DeviceMetrics()), device.metrics)

    def device(self, device_id: int, attached: Device | None) -> DeviceMetrics:
        """What all devices with that first IPU counted; `attached` is the present one."""
        with self._lock:
            retired = self._retired.get(device_id, DeviceMetrics())
        return _sum(retired, attached.metrics) if attached is not None else retired

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

    def device_ids(self) -> frozenset[int]:
        """Devices that were ever detached."""
        with self._lock:
            return frozenset(self._retired)


def _sum(first: DeviceMetrics, second: DeviceMetrics) -> DeviceMetrics:
    return DeviceMetrics(**{each.name: getattr(first, each.name) + getattr(second, each.name) for each in fields(DeviceMetrics)})
