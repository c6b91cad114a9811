"""`Device`: the IPUs that a program runs on, and the one executable they hold.

The simulated IPUs of this process. The default is four IPUs (as in an M2000) without a fixed version. An attached IPU takes the version and
number of tiles of its program until it is released. So executables for ipu2 and for ipu21 both run without configuration. To fix the
system, create a `SimulatedSystem`, or set these environment variables before first use:

    STOKER_SIM_IPUS            number of IPUs
    STOKER_SIM_IPU_VERSION     ipu2 or ipu21 (or 2, 21)
    STOKER_SIM_TILES_PER_IPU   tiles of each
    STOKER_SIM_FAULTS          faults of the first IPU, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from stoker.backends.ipu.hardware import BY_VERSION
from stoker.backends.ipu.runtime.errors import (
    ApplicationRuntimeError,
    ProgramEvicted,
    RecoverableRuntimeError,
    RecoveryAction,
    SessionStopped,
    UnknownRuntimeError,
)
from stoker.backends.simulated.faults import Fault, FaultKind, FaultPlan
from stoker.backends.simulated.pacing import NS_PER_S, HostClock, Timeline, WaitableClock

DEFAULT_IPUS = 4
MAX_IPUS = 1024  # a POD has 64 to 1024
#: The recovery action of an injected reset, by its variant.
RESETS = {
    "": RecoveryAction.IPU_RESET,
    "ipu": RecoveryAction.IPU_RESET,
    "link": RecoveryAction.LINK_RESET,
    "partition": RecoveryAction.PARTITION_RESET,
    "full": RecoveryAction.FULL_RESET,
}


@dataclass(slots=True, eq=False)
class SimulatedIpu:
    """One IPU. Guarded by: the system's condition.

    Attributes:
        id: Its index in the system.
        faults: Its injected faults.
        timeline: Its reserved modelled time.
        is_attached: Whether a `Device` has attached it.
        is_lost: Whether it is lost, so that no reset repairs it.
    """

    id: int
    faults: FaultPlan
    timeline: Timeline = field(default_factory=Timeline)
    is_attached: bool = False
    is_lost: bool = False


class SimulatedSystem:
    """A set of identical IPUs. Any thread may use it.

    Attributes:
        ipus: All IPUs.
        ipu_version: 2 or 21; None: each attached IPU takes the version of its program.
        tiles_per_ipu: Tiles of each IPU; None: each attached IPU takes the number of its program.
        clock: The clock of waits, timeouts and pacing.
        condition: Notified when an IPU is released.
    """

    def __init__(
        self,
        num_ipus: int = DEFAULT_IPUS,
        *,
        ipu_version: str | int | None = None,
        tiles_per_ipu: int | None = None,
        clock: WaitableClock | None = None,
        faults: Sequence[FaultPlan] = (),
    ) -> None:
        """Creates a system.

        Args:
            num_ipus: Number of IPUs.
            ipu_version: `ipu2`, `ipu21`, 2 or 21; None: see the attribute.
            tiles_per_ipu: Tiles of each IPU; None: see the attribute.
            clock: By default the machine's clock.
            faults: Faults of the first IPU, the second, and so on. Further IPUs have none.

        Raises:
            ValueError: a number is out of range, no such version exists, or a fault is not supported by IPUs.
        """
        if not 1 <= num_ipus <= MAX_IPUS:
            raise ValueError(f"a simulated system has 1 to {MAX_IPUS} IPUs, not {num_ipus}")
        if tiles_per_ipu is not None and tiles_per_ipu < 1:
            raise ValueError(f"a simulated IPU has at least one tile, not {tiles_per_ipu}")
        if len(faults) > num_ipus:
            raise ValueError(f"there are plans of faults for {len(faults)} IPUs, the simulated system has {num_ipus}")
        for plan in faults:
            _reject_unknown(plan)
        self.ipu_version = None if ipu_version is None else version_number(ipu_version)
        self.tiles_per_ipu = tiles_per_ipu
        self.clock: WaitableClock = clock or HostClock()
        self.condition = threading.Condition()
        plans = [*faults, *(FaultPlan() for _ in range(num_ipus - len(faults)))]
        self.ipus = tuple(SimulatedIpu(number, plans[number]) for number in range(num_ipus))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "SimulatedSystem":
        """Returns the system that the `STOKER_SIM_*` variables describe.

        Raises:
            ValueError: a variable is invalid; the text names it.
        """
        try:
            num_ipus = _number(environment, "STOKER_SIM_IPUS")
            return cls(
                DEFAULT_IPUS if num_ipus is None else num_ipus,
                ipu_version=environment.get("STOKER_SIM_IPU_VERSION") or None,
                tiles_per_ipu=_number(environment, "STOKER_SIM_TILES_PER_IPU"),
                faults=[FaultPlan.parse(environment.get("STOKER_SIM_FAULTS", ""))],
            )
        except ValueError as error:
            raise ValueError(f"STOKER_SIM_* variables: {error}") from error


def _reject_unknown(plan: FaultPlan) -> None:
    for fault in plan.faults:
        variants = RESETS if fault.kind is FaultKind.RESET else ("",)
        if fault.detail not in variants:
            known = ", ".join(filter(None, variants)) or "none"
            raise ValueError(f"fault '{fault.kind.value}:{fault.detail}@{fault.execution}': no such variant; there are {known}")


def version_number(version: str | int) -> int:
    """Returns the version 2 or 21 for `ipu2`, `ipu21`, `2`, `21`, 2 or 21.

    Raises:
        ValueError: there is no such version.
    """
    name = f"ipu{str(version).removeprefix('ipu')}"
    if name not in BY_VERSION:
        raise ValueError(f"there is no IPU version '{version}'; simulated are {', '.join(BY_VERSION)}")
    return BY_VERSION[name].ipu_version


_process_lock = threading.Lock()
_process_system: SimulatedSystem | None = None


def process_system() -> SimulatedSystem:
    """Returns the default system of this process, created from the environment at the first call."""
    global _process_system  # one system for the whole process
    with _process_lock:
        if _process_system is None:
            _process_system = SimulatedSystem.from_environment()
        return _process_system


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name}='{text}' is no number")
    return int(text)


class LoadedProgramState(Protocol):
    """The program of a session, as a device holds it."""

    name: str

    def on_loaded(self) -> None:
        """Called after the device loaded the program, with the device claimed. The load programs run again."""

    @property
    def load_s(self) -> float:
        """Modelled seconds to load the program."""

    @property
    def reloads_when_evicted(self) -> bool:
        """Whether the program is loaded again automatically after another program evicted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetrics:
    """The counts of a simulated device since it was attached.

    Attributes:
        loads: Loads of executables, including reloads.
        evictions: Loads that evicted another executable.
        calls: Calls of a main program that have begun.
        micro_batches: Micro-batches run, dummy ones included.
        busy_s: Modelled time of all micro-batches and of loading.
        load_s: Modelled time of loading only.
        cycles: Modelled cycles of the slowest tile, all steps together.
        slow_micro_batches: Micro-batches that took this host longer than the modelled time.
    """

    loads: int = 0
    evictions: int = 0
    calls: int = 0
    micro_batches: int = 0
    busy_s: float = 0.0
    load_s: float = 0.0
    cycles: int = 0
    slow_micro_batches: int = 0


class Device:
    """One or more IPUs attached for one program. Any thread may use it; `claimed` lets one session in at a time.

    Sessions may share a device; it holds one executable, and loading another evicts the first.

    Attributes:
        id: Id of its first IPU.
        ipus: All its IPUs.
        ipu_version: 2 or 21.
        tiles_per_ipu: Tiles of each.
    """

    def __init__(self, system: SimulatedSystem, ipus: Sequence[SimulatedIpu], *, ipu_version: int, tiles_per_ipu: int) -> None:
        """Takes over `ipus`, which are marked as attached."""
        self.id = ipus[0].id
        self.ipus = tuple(ipus)
        self.ipu_version = ipu_version
        self.tiles_per_ipu = tiles_per_ipu
        self.system = system
        self._turns = threading.Condition()
        self._waiting: list[object] = []  # first come, first served
        self._holder: object | None = None
        self._resident: LoadedProgramState | None = None
        self._broken: UnknownRuntimeError | RecoverableRuntimeError | None = None
        self._is_attached = True
        self._metrics = DeviceMetrics()

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def num_ipus(self) -> int:
        """The number of its IPUs."""
        return len(self.ipus)

    @property
    def timeline(self) -> Timeline:
        """The modelled time that the device has reserved. Confined to: the thread that has claimed the device."""
        return self.ipus[0].timeline

    @property
    def is_attached(self) -> bool:
        """Whether the device still holds its IPUs."""
        return self._is_attached

    @property
    def metrics(self) -> DeviceMetrics:
        """A snapshot of its counters. All times in it are modelled."""
        return self._metrics

    @property
    def resident(self) -> LoadedProgramState | None:
        """The program that the device holds."""
        return self._resident

    def load(self, program: LoadedProgramState, is_stopped: Callable[[], bool]) -> None:
        """Loads `program` to the device in place of the current program. Does nothing if it is already loaded.

        Raises:
            IpuRuntimeError: the device is detached, broken, or the caller was stopped while it waited for its turn.
        """
        with self._turn(program, is_stopped):
            self._make_resident(program)

    @contextmanager
    def claimed(self, program: LoadedProgramState, is_stopped: Callable[[], bool]) -> Iterator[Fault | None]:
        """Claims the device for one call of `program`'s main program; first loads it again if another program evicted it.

        Yields:
            The fault to inject into this call. Faults that end the call at once are raised instead.

        Raises:
            ProgramEvicted: another program took the device, and this one does not reload.
            IpuRuntimeError: the device is detached, broken or breaks now, or the caller was stopped while it waited for its turn.
        """
        with self._turn(program, is_stopped):
            if self._resident is not program:
                if not program.reloads_when_evicted:
                    holder = f"'{self._resident.name}' was loaded to" if self._resident else "it was unloaded from"
                    raise ProgramEvicted(f"executable '{program.name}' is no longer on device {self.id}: {holder} it meanwhile")
                self._make_resident(program)
            strikes = [ipu.faults.strike() for ipu in self.ipus]  # each IPU counts its executions
            self.count(calls=1)
            yield next(filter(None, strikes), None)

    def unload_from_device(self) -> None:
        """Unloads the program. Its next use loads it again."""
        with self._turns:
            self._resident = None

    def detach(self) -> None:
        """Releases the IPUs to the system once the current call has ended. Sessions on the device then fail."""
        with self._turns:
            if not self._is_attached:
                return
            self._is_attached = False
            self._resident = None
            self._turns.notify_all()
            is_idle = self._holder is None
        if is_idle:
            self._give_back()

    def break_down(self, error: UnknownRuntimeError | RecoverableRuntimeError, *, is_lost: bool = False) -> None:
        """Makes every later use raise `error`, until `reset` repairs the device. No reset repairs a lost device."""
        with self._turns:
            self._broken = error
            self._resident = None
        if is_lost:
            with self.system.condition:
                for ipu in self.ipus:
                    ipu.is_lost = True

    def reset(self, action: RecoveryAction = RecoveryAction.IPU_RESET) -> None:
        """Makes a broken device usable again. The device then holds no program.

        Raises:
            UnknownRuntimeError: the device is lost.
            RecoverableRuntimeError: the device needs another reset than `action`. `FULL_RESET` repairs every failure that a reset can
                repair.
        """
        with self._turns:
            error = self._broken
            if isinstance(error, UnknownRuntimeError):
                raise error
            if error is not None and action not in (error.action, RecoveryAction.FULL_RESET):
                raise error
            self._broken = None
            self._resident = None

    def nudge(self) -> None:
        """Wakes the waiting callers, so that they check whether they were stopped."""
        with self._turns:
            self._turns.notify_all()

    def count(self, *, calls: int = 0, micro_batches: int = 0, busy_ns: int = 0, cycles: int = 0, slow_micro_batches: int = 0) -> None:
        """Adds to the metrics."""
        with self._turns:
            now = self._metrics
            self._metrics = replace(
                now,
                calls=now.calls + calls,
                micro_batches=now.micro_batches + micro_batches,
                busy_s=now.busy_s + busy_ns / NS_PER_S,
                cycles=now.cycles + cycles,
                slow_micro_batches=now.slow_micro_batches + slow_micro_batches,
            )

    @contextmanager
    def _turn(self, program: LoadedProgramState, is_stopped: Callable[[], bool]) -> Iterator[None]:
        ticket = object()
        with self._turns:
            self._waiting.append(ticket)
            try:
                self._turns.wait_for(lambda: is_stopped() or (self._holder is None and self._waiting[0] is ticket))
                if is_stopped():
                    raise SessionStopped(f"executable '{program.name}' was stopped while it waited for device {self.id}")
                self._reject_if_unusable(program)
                self._holder = ticket
            finally:
                self._waiting.remove(ticket)
                self._turns.notify_all()
        try:
            yield
        finally:
            with self._turns:
                self._holder = None
                self._turns.notify_all()
                is_detached = not self._is_attached
            if is_detached:
                self._give_back()

    def _give_back(self) -> None:
        with self.system.condition:
            for ipu in self.ipus:
                ipu.is_attached = False
            self.system.condition.notify_all()

    def _reject_if_unusable(self, program: LoadedProgramState) -> None:
        if self._broken is not None:
            raise self._broken
        if not self._is_attached:
            raise ApplicationRuntimeError(f"device {self.id} is detached; executable '{program.name}' cannot run on it")

    def _make_resident(self, program: LoadedProgramState) -> None:
        if self._resident is program:
            return
        load_ns = round(program.load_s * NS_PER_S)
        with self._turns:
            now = self._metrics
            self._metrics = replace(
                now,
                loads=now.loads + 1,
                evictions=now.evictions + (self._resident is not None),
                busy_s=now.busy_s + program.load_s,
                load_s=now.load_s + program.load_s,
            )
            self._resident = program
        self.timeline.reserve(load_ns, now_ns=self.system.clock.now_ns(), was_waiting=False)
        try:
            program.on_loaded()
        except BaseException:
            self.unload_from_device()  # the program cannot run without its weights
            raise
