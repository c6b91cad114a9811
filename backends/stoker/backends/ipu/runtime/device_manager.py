"""`DeviceManager`: finds and attaches simulated IPUs that fit a program."""

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.backends.ipu.hardware import BY_VERSION
from stoker.backends.ipu.popef.model import Model
from stoker.backends.ipu.popef.schema import Metadata
from stoker.backends.ipu.program import StaticProgram
from stoker.backends.ipu.runtime.device import Device, SimulatedIpu, SimulatedSystem, process_system, version_number
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, DeviceUnavailable
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.runtime_config import DeviceWaitConfig, DeviceWaitStrategy
from stoker.backends.simulated.pacing import NS_PER_S, WaitableClock

#: The version that a system without a fixed version reports: the newest one, which runs every precision.
_UNDECIDED_VERSION = 21
#: Tiles of the vendor's "small" model of an IPU [C: Poplar's IPUModel].
_SMALL_TILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConstraints:
    """The required properties of a device; None: any value.

    Attributes:
        num_ipus: IPUs of the device, all replicas together.
        ipu_version: 2 or 21.
        tiles_per_ipu: Tiles of each IPU.
        device_ids: Ids of IPUs that may be used.
    """

    num_ipus: int = 1
    ipu_version: int | None = None
    tiles_per_ipu: int | None = None
    device_ids: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if self.num_ipus < 1:
            raise ValueError(f"a device has at least one IPU, not {self.num_ipus}")

    @classmethod
    def of(cls, model: "Executable | Model | Metadata | StaticProgram | int") -> "DeviceConstraints":
        """Returns the constraints of a model; for a number, of that many IPUs of any kind."""
        if isinstance(model, int):
            return cls(num_ipus=model)
        if isinstance(model, Executable):
            model = model.program
        if isinstance(model, Model):
            model = model.metadata
        tiles = model.tiles_per_ipu if isinstance(model, StaticProgram) else None
        return cls(num_ipus=model.num_ipus * model.replication_factor, ipu_version=model.ipu_version, tiles_per_ipu=tiles)

    def and_also(self, other: "DeviceConstraints") -> "DeviceConstraints":
        """Combines two sets of constraints.

        Raises:
            ApplicationRuntimeError: no device can satisfy both.
        """
        ids = self.device_ids
        if other.device_ids is not None:
            ids = other.device_ids if ids is None else ids & other.device_ids
        return DeviceConstraints(
            num_ipus=max(self.num_ipus, other.num_ipus),
            ipu_version=_agreed("ipu_version", self.ipu_version, other.ipu_version),
            tiles_per_ipu=_agreed("tiles_per_ipu", self.tiles_per_ipu, other.tiles_per_ipu),
            device_ids=ids,
        )


class DeviceManager:
    """Attaches devices of one simulated system. Any thread may use it."""

    def __init__(self, system: SimulatedSystem | None = None) -> None:
        """Manages `system`; by default the system of this process (see `SimulatedSystem`)."""
        self.system = system or process_system()

    def get_num_devices(self) -> int:
        """Returns the number of IPUs in the system."""
        return len(self.system.ipus)

    def ipu_hardware_version(self) -> str:
        """Returns `ipu2` or `ipu21`; for a system without a fixed version `ipu21`, which runs every precision."""
        return f"ipu{self.system.ipu_version or _UNDECIDED_VERSION}"

    def get_device(
        self,
        model: Executable | Model | Metadata | StaticProgram | int = 1,
        wait_config: DeviceWaitConfig | None = None,
        constraints: DeviceConstraints | None = None,
    ) -> Device:
        """Attaches IPUs that satisfy the constraints.

        Args:
            model: The model to run, or a number of IPUs.
            wait_config: The wait for a free device; by default none.
            constraints: Further conditions.

        Raises:
            ValueError: fewer than one IPU is wanted.
            DeviceUnavailable: no device became free in time.
            ApplicationRuntimeError: the system has no such device, free or not; the text names the required and the existing devices.
        """
        wanted = DeviceConstraints.of(model)
        return self._attach(wanted if constraints is None else wanted.and_also(constraints), wait_config or DeviceWaitConfig())

    def get_specific_device(self, device_id: int, wait_config: DeviceWaitConfig | None = None) -> Device:
        """Attaches the IPU `device_id`.

        Raises:
            DeviceUnavailable: the IPU did not become free in time.
            ApplicationRuntimeError: there is no such IPU.
        """
        return self._attach(DeviceConstraints(device_ids=frozenset({device_id})), wait_config or DeviceWaitConfig())

    @staticmethod
    def create_ipu_model_device(
        num_ipus: int = 1, ipu_version: str | int = "ipu2", tiles_per_ipu: int | None = None, *, clock: WaitableClock | None = None
    ) -> Device:
        """Creates a separate device that belongs to no system.

        Raises:
            ValueError: a number is out of range, or no such version exists.
        """
        number = version_number(ipu_version)
        tiles = BY_VERSION[f"ipu{number}"].tiles if tiles_per_ipu is None else tiles_per_ipu
        system = SimulatedSystem(num_ipus, ipu_version=number, tiles_per_ipu=tiles, clock=clock)
        return DeviceManager(system).get_device(num_ipus)

    @staticmethod
    def create_small_ipu_model_device(num_ipus: int = 1, ipu_version: str | int = "ipu2") -> Device:
        """Creates a separate device with few tiles, for programs compiled for this number."""
        return DeviceManager.create_ipu_model_device(num_ipus, ipu_version, _SMALL_TILES)

    def _attach(self, wanted: DeviceConstraints, wait: DeviceWaitConfig) -> Device:
        clock, condition = self.system.clock, self.system.condition
        deadline_ns = None
        if wait.strategy is not DeviceWaitStrategy.WAIT_FOREVER:
            timeout_s = wait.timeout_s if wait.strategy is DeviceWaitStrategy.WAIT_WITH_TIMEOUT else 0.0
            deadline_ns = clock.now_ns() + round(timeout_s * NS_PER_S)
        with condition:
            while True:
                fitting = [ipu for ipu in self.system.ipus if self._fits(ipu, wanted)]
                if len(fitting) < wanted.num_ipus:
                    raise ApplicationRuntimeError(f"no simulated device fits: {_wish(wanted)}; the system has {self._offer()}")
                free = [ipu for ipu in fitting if not ipu.is_attached]
                if len(free) >= wanted.num_ipus:
                    return self._attached(free[: wanted.num_ipus], wanted)
                now_ns = clock.now_ns()
                if deadline_ns is not None and now_ns >= deadline_ns:
                    waited = f" after {wait.timeout_s:g} s" if wait.strategy is DeviceWaitStrategy.WAIT_WITH_TIMEOUT else ""
                    raise DeviceUnavailable(
                        f"no simulated device is free{waited}: {_wish(wanted)}; {len(free)} of {len(fitting)} that fit are free"
                    )
                retry_ns = now_ns + round(wait.sleep_s * NS_PER_S)
                clock.wait(condition, retry_ns if deadline_ns is None else min(retry_ns, deadline_ns))

    def _attached(self, ipus: Sequence[SimulatedIpu], wanted: DeviceConstraints) -> Device:
        version = self.system.ipu_version or wanted.ipu_version or _UNDECIDED_VERSION
        tiles = self.system.tiles_per_ipu or wanted.tiles_per_ipu or BY_VERSION[f"ipu{version}"].tiles
        for ipu in ipus:
            ipu.is_attached = True
        return Device(self.system, ipus, ipu_version=version, tiles_per_ipu=tiles)

    def _fits(self, ipu: SimulatedIpu, wanted: DeviceConstraints) -> bool:
        """Whether the IPU, free or not, satisfies the constraints. Properties that the system does not fix always match."""
        if ipu.is_lost or (wanted.device_ids is not None and ipu.id not in wanted.device_ids):
            return False
        version = wanted.ipu_version
        if version is not None and f"ipu{version}" not in BY_VERSION:
            return False
        pairs = ((version, self.system.ipu_version), (wanted.tiles_per_ipu, self.system.tiles_per_ipu))
        return all(want is None or have is None or want == have for want, have in pairs)

    def _offer(self) -> str:
        version = f"ipu{self.system.ipu_version}" if self.system.ipu_version else "any version"
        tiles = f"{self.system.tiles_per_ipu} tiles" if self.system.tiles_per_ipu else "any number of tiles"
        usable = sum(not ipu.is_lost for ipu in self.system.ipus)
        return f"{usable} usable IPU(s) of {version} and {tiles} (STOKER_SIM_IPUS, STOKER_SIM_IPU_VERSION, STOKER_SIM_TILES_PER_IPU)"


def reject_violation(program: StaticProgram, device: Device) -> None:
    """Checks that `device` is what `program` was compiled for.

    Raises:
        ApplicationRuntimeError: it is not; the text names the difference.
    """
    needs = program.num_ipus * program.replication_factor
    complaints = []
    if device.ipu_version != program.ipu_version:
        complaints.append(f"it was compiled for ipu{program.ipu_version}, the device is an ipu{device.ipu_version}")
    if device.tiles_per_ipu != program.tiles_per_ipu:
        complaints.append(f"it was compiled for {program.tiles_per_ipu} tiles, each IPU of the device has {device.tiles_per_ipu}")
    if device.num_ipus < needs:
        complaints.append(f"it needs {needs} IPUs, the device has {device.num_ipus}")
    if complaints:
        raise ApplicationRuntimeError(f"the program does not run on device {device.id}: {'; '.join(complaints)}")


def _wish(wanted: DeviceConstraints) -> str:
    parts = [f"{wanted.num_ipus} IPU(s)"]
    if wanted.ipu_version is not None:
        parts.append(f"of version ipu{wanted.ipu_version}")
    if wanted.tiles_per_ipu is not None:
        parts.append(f"with {wanted.tiles_per_ipu} tiles")
    if wanted.device_ids is not None:
        parts.append(f"among ids {sorted(wanted.device_ids)}")
    return f"wanted {' '.join(parts)}"


def _agreed(field: str, first: int | None, second: int | None) -> int | None:
    if first is not None and second is not None and first != second:
        raise ApplicationRuntimeError(
            f"no device has {field} {first} and {second} at once: the model needs one, the constraints ask for the other"
        )
    return first if first is not None else second
