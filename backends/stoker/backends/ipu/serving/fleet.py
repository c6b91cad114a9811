"""`Fleet`: the simulated IPUs of the server, and the executables that are resident on them.

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
from stoker.backends.ipu.runtime.device_manager import refuse_misfit
from stoker.backends.ipu.serving.parameters import RunOptions
from stoker.backends.ipu.serving.resident import Resident, Tenant
from stoker.backends.ipu.serving.tally import Tally

log = logging.getLogger("stoker.backends.poplar")


class Fleet:
    """Any thread may use it."""

    def __init__(self, system: SimulatedSystem, clock: Clock) -> None:
        """Manages `system`; `clock` times batches for the metrics."""
        self._manager = DeviceManager(system)
        self._clock = clock
        self._lock = threading.Lock()  # also serialises the building of engines
        self._residents: tuple[Resident, ...] = ()
        self.tally = Tally(len(system.ipus))

    @property
    def residents(self) -> tuple[Resident, ...]:
        """What is loaded now: a snapshot."""
        return self._residents

    def take(
        self,
        tenant: Tenant,
        executable: Executable,
        digest: str,
        options: RunOptions,
        runtime_config: Callable[[], RuntimeConfig],
    ) -> Resident:
        """The executable, resident on a device; give it back with `release`.

        The instances of one version get copies, each on a device of its own; where no further device is free they share what there is.

        Args:
            tenant: Who asks.
            executable: What to load if it is not there yet.
            digest: Of its file: what makes two files one executable.
            options: How it runs. Only who agrees in them shares it.
            runtime_config: For the runner, if one must be made.

        Raises:
            ModelLoadError: no device fits, or the executable cannot be loaded.
        """
        with self._lock:
            same = [each for each in self._residents if each.digest == digest and each.options == options and each.is_usable]
            resident = next((each for each in same if tenant not in each.tenants), None)
            if resident is None:
                device = self._free_device(executable, options)
                if device is None and same:
                    resident = min(same, key=lambda each: len(each.tenants))
                else:
                    device = device or self._shared_device(executable, options)
                    resident = self._load(executable, digest, options, device, runtime_config)
                    log.info("executable '%s' is on simulated IPU %d", executable.name, device.id, extra={"model": tenant.model})
            resident.tenants.append(tenant)
            return resident

    def release(self, resident: Resident, tenant: Tenant) -> None:
        """Gives back what `take` gave; with its last tenant the executable leaves the device."""
        with self._lock:
            resident.tenants.remove(tenant)
            if resident.tenants:
                return
            self._residents = tuple(each for each in self._residents if each is not resident)
            resident.close()
            self._detach_if_unused(resident.device)

    def crowds(self) -> Iterator[tuple[Device, list[Resident]]]:
        """Devices with more than one executable, and these."""
        residents = self._residents
        for device in dict.fromkeys(resident.device for resident in residents):
            sharing = [resident for resident in residents if resident.device is device]
            if len(sharing) > 1:
                yield device, sharing

    def devices(self) -> tuple[Device, ...]:
        """Those in use, in the order of their ids."""
        return tuple(sorted({resident.device for resident in self._residents}, key=lambda device: device.id))

    def _load(
        self, executable: Executable, digest: str, options: RunOptions, device: Device, runtime_config: Callable[[], RuntimeConfig]
    ) -> Resident:
        try:
            runner = ModelRunner(executable, runtime_config(), device=device)
        except (IpuRuntimeError, PopefError, ValueError) as error:
            self._detach_if_unused(device)
            reason = error.reason if isinstance(error, PopefError) else error
            raise ModelLoadError(f"executable '{executable.name}' cannot be loaded to simulated IPU {device.id}: {reason}") from error
        resident = Resident(runner, digest=digest, options=options, device=device, tally=self.tally, clock=self._clock)
        self._residents = (*self._residents, resident)
        return resident

    def _free_device(self, executable: Executable, options: RunOptions) -> Device | None:
        constraints = DeviceConstraints(num_ipus=executable.num_ipus, device_ids=options.device_ids)
        try:
            device = self._manager.get_device(executable.program, constraints=constraints)
        except DeviceUnavailable:
            return None
        except IpuRuntimeError as error:
            raise ModelLoadError(f"{error}; --backend-config=poplar,sim_num_IPUs=N sets how many there are") from error
        self.tally.attach(device)
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
            return sum(resident.device is device for resident in self._residents)

        lost = {resident.device for resident in self._residents if not resident.is_usable}
        fitting = []
        for device in self.devices():
            if device in lost:
                continue
            ids = {ipu.id for ipu in device.ipus}
            if device.num_ipus != executable.num_ipus or (options.device_ids is not None and not ids <= options.device_ids):
                continue
            try:
                refuse_misfit(executable.program, device)
            except IpuRuntimeError:
                continue
            fitting.append(device)
        return min(fitting, key=load, default=None)

    def _detach_if_unused(self, device: Device) -> None:
        if not any(resident.device is device for resident in self._residents):
            self.tally.retire(device)
            device.detach()
