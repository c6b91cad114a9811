"""`VendorPool`: the record of what real devices run, for metrics and notices.

The vendors' packages state neither busy time nor memory, so the metrics are what this server counts: batches, failures and resets.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.backends.api.backend import Figure
from stoker.backends.devices.metrics import MetricFamily, MetricPage
from stoker.backends.devices.pool import DeviceCounters, DevicePool, Lease

_BATCHES: tuple[MetricFamily, ...] = (
    MetricFamily("batches_total", "batches", "Batches of requests, failed ones included."),
    MetricFamily("failed_batches_total", "failed_batches", "Batches of requests that failed."),
    MetricFamily("queue_wait_seconds_total", "queue_wait_s", "Time that batches waited for earlier batches of their executable."),
)


class VendorPool(DevicePool):
    """Any thread may use it.

    Attributes:
        counters: Counters of batches, faults and resets.
    """

    def __init__(self, page: MetricPage, devices: str, fault_label: str) -> None:
        """`page` makes the metrics; `devices` describes the devices for notices; `fault_label` is the label with the kind of a fault."""
        self.counters: DeviceCounters[Any, Any] = DeviceCounters(lambda _: {})
        self._page = page
        self._devices = devices
        self._fault_label = fault_label
        self._lock = threading.Lock()
        self._leases: tuple[tuple[Lease, int], ...] = ()

    def add(self, lease: Lease, device: int | None = None) -> int:
        """Records an instance that was loaded to `device`, and returns its number; None: to one of its own, with the first free number."""
        with self._lock:
            if device is None:
                taken = {number for _, number in self._leases}
                device = next(number for number in itertools.count() if number not in taken)
            self._leases = (*self._leases, (lease, device))
            return device

    def remove(self, lease: Lease, device: int) -> None:
        """Removes the record of an instance that is unloaded."""
        with self._lock:
            leases = list(self._leases)
            leases.remove((lease, device))
            self._leases = tuple(leases)

    def metrics(self) -> Iterator[Figure]:
        page, numbers = self._page, [device for _, device in self._leases]
        batches, resets = self.counters.batches(), self.counters.resets()
        loaded = ((number, numbers.count(number)) for number in dict.fromkeys(numbers))
        yield from page.samples("executables", "gauge", "Executables that are loaded to the device.", loaded)
        yield from page.families(_BATCHES, batches)
        yield from page.samples("resets_total", "counter", "Times that the device was set up again after a failure.", resets.items())
        yield from page.faults("Failures of batches by kind.", self.counters.faults(), self._fault_label)

    def models(self) -> Sequence[str]:
        return [lease.model for lease, _ in self._leases]

    def hardware(self) -> str:
        return self._devices

    def sharing_notices(self) -> Iterator[str]:
        return iter(())

    def models_without_numerics(self) -> Sequence[str]:
        return ()
