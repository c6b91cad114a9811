"""`DevicePool`: the simulated IPUs of the server, and the executables that are resident on them.

A device holds one executable. Whoever loads a version asks for its executable by digest: where it is resident already for another model,
both share it (the sub-graphs of a fused executable are models of their own, and the device never reloads between them); otherwise it goes
to a free device, and where none is free to the one with the fewest executables: these then push each other out, at the cost of a reload
each time, which is modelled, counted and told at start.

Engines are built one at a time, as the vendor's backend does.
"""

import logging
import threading
from collections.abc import Callable, Iterator

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.runtime import (
    Device,
    DeviceConstraints,
    DeviceManager,
    DeviceUnavailable,
    Executable,
    IpuRuntimeError,
    ModelRunner,
    RuntimeConfig,
    SimulatedSystem,
)
from stoker.backends.ipu.runtime.device_manager import reject_violation
from stoker.backends.ipu.serving.device_counters import DeviceCounters
from stoker.backends.ipu.serving.loaded_executable import Lease, LoadedExecutable
from stoker.backends.ipu.serving.parameters import RunOptions

log = logging.getLogger("stoker.backends.poplar")


class DevicePool:
    """Any thread may use it."""

    def __init__(self, system: SimulatedSystem, clock: Clock) -> None:
        """Manages `system`; `clock` times batches for the metrics."""
        self._manager = DeviceManager(system)
        self._clock = clock
        self._lock = threading.Lock()  # also serialises the building of engines
        self._loaded_executables: tuple[LoadedExecutable, ...] = ()
        self.counters = DeviceCounters(len(system.ipus))

    @property
    def loaded_executables(self) -> tuple[LoadedExecutable, ...]:
        """What is loaded now: a snapshot."""
        return self._loaded_executables

    def take(
        self,
        lease: Lease,
        executable: Executable,
        digest: str,
        options: RunOptions,
        runtime_config: Callable[[], RuntimeConfig],
    ) -> LoadedExecutable:
        """The executable, resident on a device; give it back with `release`.

        The instances of one version get copies, each on a device of its own; where no further device is free they share what there is.

        Args:
            lease: Who asks.
            executable: What to load if it is not there yet.
            digest: Of its file: what makes two files one executable.
            options: How it runs. Only who agrees in them shares it.
            runtime_config: For the runner, if one must be made.

        Raises:
            ModelLoadError: no device fits, or the executable cannot be loaded.
        """
        with self._lock:
            same = [each for each in self._loaded_executables if each.digest == digest and each.options == options and each.is_usable]
            loaded = next((each for each in same if lease not in each.tenants), None)
            if loaded is None:
                device = self._free_device(executable, options)
                if device is None and same:
                    loaded = min(same, key=lambda each: len(each.tenants))
                else:
                    device = device or self._shared_device(executable, options)
                    loaded = self._load(executable, digest, options, device, runtime_config)
                    log.info("executable '%s' is on simulated IPU %d", executable.name, device.id, extra={"model": lease.model})
            loaded.tenants.append(lease)
            return loaded

    def release(self, loaded: LoadedExecutable, lease: Lease) -> None:
        """Gives back what `take` gave; with its last tenant the executable leaves the device."""
        with self._lock:
            loaded.tenants.remove(lease)
            if loaded.tenants:
                return
            self._loaded_executables = tuple(each for each in self._loaded_executables if each is not loaded)
            loaded.close()
            self._detach_if_unused(loaded.device)

    def shared_devices(self) -> Iterator[tuple[Device, list[LoadedExecutable]]]:
        """Devices with more than one executable, and these."""
        loaded_executables = self._loaded_executables
        for device in dict.fromkeys(loaded.device for loaded in loaded_executables):
            sharing = [loaded for loaded in loaded_executables if loaded.device is device]
            if len(sharing) > 1:
                yield device, sharing

    def devices(self) -> tuple[Device, ...]:
        """Those in use, in the order of their ids."""
        return tuple(sorted({loaded.device for loaded in self._loaded_executables}, key=lambda device: device.id))

    def _load(
        self, executable: Executable, digest: str, options: RunOptions, device: Device, runtime_config: Callable[[], RuntimeConfig]
    ) -> LoadedExecutable:
        try:
            runner = ModelRunner(executable, runtime_config(), device=device)
        except (IpuRuntimeError, PopefError, ValueError) as error:
            self._detach_if_unused(device)
            reason = error.reason if isinstance(error, PopefError) else error
            raise ModelLoadError(f"executable '{executable.name}' cannot be loaded to simulated IPU {device.id}: {reason}") from error
        loaded = LoadedExecutable(runner, digest=digest, options=options, device=device, counters=self.counters, clock=self._clock)
        self._loaded_executables = (*self._loaded_executables, loaded)
        return loaded

    def _free_device(self, executable: Executable, options: RunOptions) -> Device | None:
        constraints = DeviceConstraints(num_ipus=executable.num_ipus, device_ids=options.device_ids)
        try:
            device = self._manager.get_device(executable.program, constraints=constraints)
        except DeviceUnavailable:
            return None
        except IpuRuntimeError as error:
            raise ModelLoadError(f"{error}; --backend-config=poplar,sim_num_IPUs=N sets how many there are") from error
        self.counters.attach(device)
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
            return sum(loaded.device is device for loaded in self._loaded_executables)

        lost = {loaded.device for loaded in self._loaded_executables if not loaded.is_usable}
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
        if not any(loaded.device is device for loaded in self._loaded_executables):
            self.counters.retire(device)
            device.detach()
