"""What the metrics page shows of the simulated IPUs. Every figure carries `simulated="true"`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from stoker.backends.api.figures import Figure
from stoker.backends.ipu.runtime import DeviceMetrics
from stoker.backends.ipu.serving.device_pool import DevicePool


@dataclass(frozen=True, slots=True)
class _DeviceFigure:
    name: str
    help: str
    read: Callable[[DeviceMetrics], float]


_DEVICE = (
    _DeviceFigure(
        "stoker_ipu_busy_seconds_total",
        "Modelled time the device was taken, loading included; its rate is the occupancy where pacing is realtime.",
        lambda each: each.busy_s,
    ),
    _DeviceFigure("stoker_ipu_load_seconds_total", "Modelled time of loading executables.", lambda each: each.load_s),
    _DeviceFigure("stoker_ipu_loads_total", "Executables loaded to the device, reloads included.", lambda each: each.loads),
    _DeviceFigure("stoker_ipu_evictions_total", "Loads that pushed another executable out.", lambda each: each.evictions),
    _DeviceFigure("stoker_ipu_calls_total", "Calls of main programs.", lambda each: each.calls),
    _DeviceFigure("stoker_ipu_micro_batches_total", "Micro-batches run, padding included.", lambda each: each.micro_batches),
    _DeviceFigure("stoker_ipu_cycles_total", "Modelled cycles of the slowest tile.", lambda each: each.cycles),
    _DeviceFigure(
        "stoker_ipu_slow_micro_batches_total",
        "Micro-batches that this host computed slower than the device would have.",
        lambda each: each.slow_micro_batches,
    ),
)


def pool_metrics(pool: DevicePool) -> Iterator[Figure]:
    """Everything, grouped by name."""
    loaded_executables, counters = pool.loaded_executables, pool.counters
    metrics = counters.devices()
    yield Figure(
        name="stoker_ipu_devices", help="Simulated IPUs of the server.", kind="gauge", value=counters.ipus, labels={"simulated": "true"}
    )
    for each in _DEVICE:
        for number in metrics:
            yield _figure(each.name, each.help, "counter", each.read(metrics[number]), number)
    for number in metrics:
        on_device = sum(loaded.device.id == number for loaded in loaded_executables)
        yield _figure("stoker_ipu_executables", "Executables that share the device; it holds one at a time.", "gauge", on_device, number)
    for number in metrics:
        in_flight = sum(loaded.in_flight for loaded in loaded_executables if loaded.device.id == number)
        yield _figure("stoker_ipu_batches_in_flight", "Batches on their way through the rings.", "gauge", in_flight, number)
    served = counters.served()
    for number, counts in sorted(served.items()):
        yield _figure("stoker_ipu_batches_total", "Batches that came back, failed ones included.", "counter", counts.batches, number)
    for number, counts in sorted(served.items()):
        yield _figure("stoker_ipu_failed_batches_total", "Batches that failed.", "counter", counts.failed_batches, number)
    for number, counts in sorted(served.items()):
        waited = "Time batches spent behind earlier ones of their executable that had not ended."
        yield _figure("stoker_ipu_queue_wait_seconds_total", waited, "counter", counts.queue_wait_s, number)
    for (number, action), count in sorted(counters.faults().items()):
        yield _figure(
            "stoker_ipu_faults_total", "Failures of device or program, by what they ask for.", "counter", count, number, action=action
        )


def _figure(name: str, text: str, kind: Literal["counter", "gauge"], value: float, device: int, **labels: str) -> Figure:
    return Figure(name=name, help=text, kind=kind, value=float(value), labels={"device": str(device), "simulated": "true", **labels})
