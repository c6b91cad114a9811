"""The metrics of the simulated IPUs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from stoker.backends.api.backend import Figure
from stoker.backends.ipu.runtime import Device, DeviceMetrics
from stoker.backends.ipu.serving.executable import PopefExecutable
from stoker.backends.simulated.serving.metrics import MetricFamily, MetricPage
from stoker.backends.simulated.serving.pool import DeviceCounters

#: The counts of a device, by its number (the id of its first IPU) and the field of `DeviceMetrics`.
IpuCounters = DeviceCounters[Device, tuple[int, str]]

_DEVICE: tuple[MetricFamily, ...] = (
    MetricFamily(
        "busy_seconds_total",
        "busy_s",
        "Modelled time the device was taken, loading included; its rate is the occupancy where pacing is realtime.",
    ),
    MetricFamily("load_seconds_total", "load_s", "Modelled time of loading executables."),
    MetricFamily("loads_total", "loads", "Executables loaded to the device, reloads included."),
    MetricFamily("evictions_total", "evictions", "Loads that pushed another executable out."),
    MetricFamily("calls_total", "calls", "Calls of main programs."),
    MetricFamily("micro_batches_total", "micro_batches", "Micro-batches run, padding included."),
    MetricFamily("cycles_total", "cycles", "Modelled cycles of the slowest tile."),
    MetricFamily(
        "slow_micro_batches_total", "slow_micro_batches", "Micro-batches that this host computed slower than the device would have."
    ),
)


_BATCHES: tuple[MetricFamily, ...] = (
    MetricFamily("batches_total", "batches", "Batches that came back, failed ones included."),
    MetricFamily("failed_batches_total", "failed_batches", "Batches that failed."),
    MetricFamily(
        "queue_wait_seconds_total", "queue_wait_s", "Time batches spent behind earlier ones of their executable that had not ended."
    ),
)
_FIELDS = [each.name for each in fields(DeviceMetrics)]


def new_counters() -> IpuCounters:
    """Counters of the devices of one system."""
    return DeviceCounters(lambda device: {(device.id, name): getattr(device.metrics, name) for name in _FIELDS})


def pool_metrics(ipus: int, executables: Sequence[PopefExecutable], counters: IpuCounters) -> Iterator[Figure]:
    """All metrics of a system of `ipus`, grouped by name."""
    page = MetricPage("stoker_ipu_", "device")
    readings = _readings(counters.totals())
    yield page.total("devices", "Simulated IPUs of the server.", ipus)
    yield from page.families(_DEVICE, readings)
    on_device = {number: [each for each in executables if each.device_number == number] for number in readings}
    shared = "Executables that share the device; it holds one at a time."
    yield from page.samples("executables", "gauge", shared, ((number, len(found)) for number, found in on_device.items()))
    in_flight = ((number, sum(each.in_flight for each in found)) for number, found in on_device.items())
    yield from page.samples("batches_in_flight", "gauge", "Batches on their way through the rings.", in_flight)
    yield from page.families(_BATCHES, dict(sorted(counters.batches().items())))
    yield from page.faults("Failures of device or program, by what they ask for.", counters.faults(), "action")


def _readings(totals: Mapping[tuple[int, str], Any]) -> Mapping[int, DeviceMetrics]:
    numbers = sorted({number for number, _ in totals})
    return {number: DeviceMetrics(**{name: totals[number, name] for name in _FIELDS}) for number in numbers}
