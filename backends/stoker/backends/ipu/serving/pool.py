"""`IpuPool`: the simulated IPUs of the server, the executables loaded on them, and their metrics.

A device holds one executable. Executables are identified by their file's digest. If another model has loaded the same executable, both
share it (the sub-graphs of a fused executable are models of their own, and the device never reloads between them). Otherwise it goes to a
free device, and if none is free, to the device with the fewest executables. These then evict each other, at the cost of a reload each time;
the reload is modelled, counted and reported at start.

The pool builds engines one at a time, as the vendor's backend does.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from stoker.backends.api.backend import Figure
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.devices.metrics import MetricFamily, MetricPage
from stoker.backends.devices.pool import DeviceCounters, DevicePool, quoted
from stoker.backends.ipu.popef.schema import PopefError
from stoker.backends.ipu.runtime import (
    Device,
    DeviceConstraints,
    DeviceManager,
    DeviceMetrics,
    DeviceUnavailable,
    Executable,
    IpuRuntimeError,
    ModelRunner,
    RuntimeConfig,
    SimulatedSystem,
)
from stoker.backends.ipu.runtime.device_manager import reject_violation
from stoker.backends.ipu.serving.options import RunOptions
from stoker.backends.ipu.serving.popef_executable import GraphLease, PopefExecutable
from stoker.backends.simulated.numerics import Numerics

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
    page = MetricPage("stoker_ipu_", "device", is_simulated=True)
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


log = logging.getLogger("stoker.backends.poplar")


class IpuPool(DevicePool):
    """Any thread may use it.

    Attributes:
        system: The simulated IPUs.
    """

    def __init__(self, system: SimulatedSystem, clock: Clock) -> None:
        """Manages `system`; `clock` times batches for the metrics."""
        self.system = system
        self._manager = DeviceManager(system)
        self._clock = clock
        self._lock = threading.Lock()  # also serialises the building of engines
        self._executables: tuple[PopefExecutable, ...] = ()
        self._ipus = len(system.ipus)
        self._counters = new_counters()

    def metrics(self) -> Iterator[Figure]:
        return pool_metrics(self._ipus, self._executables, self._counters)

    def models(self) -> Sequence[str]:
        return [model for each in self._executables for model in each.models]

    def hardware(self) -> str:
        return f"simulated IPUs, of which there are {self._ipus}"

    def sharing_notices(self) -> Iterator[str]:
        executables = self._executables
        for device in dict.fromkeys(each.device for each in executables):
            sharing = [each for each in executables if each.device is device]
            if len(sharing) > 1:
                names = "; ".join(quoted(each.models) for each in sharing)
                longest_s = max(each.load_s for each in sharing)
                yield (
                    f"simulated IPU {device.id} is shared by {len(sharing)} executables ({names}), of which it holds one: they push each "
                    f"other out, and each reload takes up to {longest_s:.2f} s of modelled time; more IPUs (sim_num_IPUs) or model fusion "
                    "avoid that"
                )

    def models_without_numerics(self) -> Sequence[str]:
        return [model for each in self._executables if each.options.numerics is Numerics.OFF for model in each.models]

    def take(
        self,
        lease: GraphLease,
        executable: Executable,
        digest: str,
        options: RunOptions,
        runtime_config: Callable[[], RuntimeConfig],
    ) -> PopefExecutable:
        """Returns the executable, loaded on a device. The caller returns it with `release`.

        Each instance of a version gets a copy on a separate device. If no further device is free, instances share a copy.

        Args:
            lease: The lease of the calling instance.
            executable: The executable to load if it is not loaded yet.
            digest: Digest of its file. Files with equal digests are one executable.
            options: The options of its run. Only instances with equal options share a copy.
            runtime_config: The configuration of a new runner.

        Raises:
            ModelLoadError: no device fits, or the executable cannot be loaded.
        """
        with self._lock:
            same = [each for each in self._executables if each.digest == digest and each.options == options and each.is_usable]
            loaded = next((each for each in same if lease not in each.leases), None)
            if loaded is None:
                device = self._free_device(executable, options)
                if device is None and same:
                    loaded = min(same, key=lambda each: len(each.leases))
                else:
                    device = device or self._shared_device(executable, options)
                    loaded = self._load(executable, digest, options, device, runtime_config)
                    log.info("executable '%s' is on simulated IPU %d", executable.name, device.id, extra={"model": lease.model})
            loaded.leases.append(lease)
            return loaded

    def release(self, loaded: PopefExecutable, lease: GraphLease) -> None:
        """Ends a lease that `take` gave. The end of the last lease unloads the executable from the device."""
        with self._lock:
            loaded.leases.remove(lease)
            if loaded.leases:
                return
            self._executables = tuple(each for each in self._executables if each is not loaded)
            loaded.close()
            self._detach_if_unused(loaded.device)

    def devices(self) -> tuple[Device, ...]:
        """The devices in use, in the order of their ids."""
        return tuple(sorted({loaded.device for loaded in self._executables}, key=lambda device: device.id))

    def _load(
        self, executable: Executable, digest: str, options: RunOptions, device: Device, runtime_config: Callable[[], RuntimeConfig]
    ) -> PopefExecutable:
        try:
            runner = ModelRunner(executable, runtime_config(), device=device)
        except (IpuRuntimeError, PopefError, ValueError) as error:
            self._detach_if_unused(device)
            reason = error.reason if isinstance(error, PopefError) else error
            raise ModelLoadError(f"executable '{executable.name}' cannot be loaded to simulated IPU {device.id}: {reason}") from error
        loaded = PopefExecutable(runner, digest=digest, options=options, device=device, counters=self._counters, clock=self._clock)
        self._executables = (*self._executables, loaded)
        return loaded

    def _free_device(self, executable: Executable, options: RunOptions) -> Device | None:
        constraints = DeviceConstraints(num_ipus=executable.num_ipus, device_ids=options.device_ids)
        try:
            device = self._manager.get_device(executable.program, constraints=constraints)
        except DeviceUnavailable:
            return None
        except IpuRuntimeError as error:
            raise ModelLoadError(f"{error}; --backend-config=poplar,sim_num_IPUs=N sets how many there are") from error
        self._counters.attach(device)
        return device

    def _shared_device(self, executable: Executable, options: RunOptions) -> Device:
        shared = self._least_crowded(executable, options)
        if shared is None:
            taken = "; ".join(f"IPU {device.id}: {device.num_ipus} IPU(s), ipu{device.ipu_version}" for device in self.devices())
            raise ModelLoadError(
                f"no simulated device with {executable.num_ipus} IPU(s) is free for executable '{executable.name}', and none in use fits "
                f"to be shared ({taken}): set sim_num_IPUs higher"
            )
        return shared

    def _least_crowded(self, executable: Executable, options: RunOptions) -> Device | None:
        def load(device: Device) -> int:
            return sum(loaded.device is device for loaded in self._executables)

        lost = {loaded.device for loaded in self._executables if not loaded.is_usable}
        fitting = []
        for device in self.devices():
            if device in lost:
                continue
            ids = {ipu.id for ipu in device.ipus}
            if device.num_ipus != executable.num_ipus or (options.device_ids is not None and not ids <= options.device_ids):
                continue
            try:
                reject_violation(executable.program, device)
            except IpuRuntimeError:
                continue
            fitting.append(device)
        return min(fitting, key=load, default=None)

    def _detach_if_unused(self, device: Device) -> None:
        if not any(loaded.device is device for loaded in self._executables):
            self._counters.retire(device)
            device.detach()
