"""`Device`: the IPUs that a program runs on, and the one executable they hold.

The IPUs that this process pretends to have. Nothing configured: four IPUs (as many as an M2000 has) of no version yet. Each takes version
and tiles of what it is attached for and forgets them when it is released, so that an executable compiled for ipu2 and one compiled for
ipu21 both run without any set-up. To pin the system down, make a `SimulatedSystem`, or set the environment before first use:

    STOKER_SIM_IPUS            how many IPUs
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
#: What an injected reset may ask for, by its variant.
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
        id: Its place in the system.
        faults: What goes wrong on it.
        timeline: When it is free.
        is_attached: Whether a `Device` has it.
        is_lost: Whether it is gone for good.
    """

    id: int
    faults: FaultPlan
    timeline: Timeline = field(default_factory=Timeline)
    is_attached: bool = False
    is_lost: bool = False


class SimulatedSystem:
    """A set of IPUs, all alike. Any thread may use it.

    Attributes:
        ipus: All of them.
        ipu_version: 2 or 21; None: each IPU takes that of what it is attached for.
        tiles_per_ipu: None: likewise.
        clock: What waiting for devices, timeouts and pacing go by.
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
        """A system of `num_ipus`.

        Args:
            num_ipus: How many.
            ipu_version: `ipu2`, `ipu21`, 2 or 21; None: not decided.
            tiles_per_ipu: None: not decided.
            clock: The machine's by default.
            faults: Of the first IPU, the second, and so on; the others have none.

        Raises:
            ValueError: a number is out of range, no such version exists, or a fault is one that no IPU has.
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
        """The system that the `STOKER_SIM_*` variables describe.

        Raises:
            ValueError: a variable makes no sense; names it.
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
    """2 or 21 of `ipu2`, `ipu21`, `2`, `21`, 2 or 21.

    Raises:
        ValueError: no such version.
    """
    name = f"ipu{str(version).removeprefix('ipu')}"
    if name not in BY_VERSION:
        raise ValueError(f"there is no IPU version '{version}'; simulated are {', '.join(BY_VERSION)}")
    return BY_VERSION[name].ipu_version


_process_lock = threading.Lock()
_process_system: SimulatedSystem | None = None


def process_system() -> SimulatedSystem:
    """The system of this process, made from the environment when first asked for; of all `DeviceManager` without one of their own."""
    global _process_system  # the one machine that this process runs on
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
    """A program that a device can hold: a session's."""

    name: str

    def on_loaded(self) -> None:
        """The device holds the program afresh: its load programs run again. Called with the device claimed."""

    @property
    def load_s(self) -> float:
        """Modelled time to load it."""

    @property
    def reloads_when_evicted(self) -> bool:
        """Whether it comes back by itself when another program took the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetrics:
    """The counts of a simulated device since it was attached.

    Attributes:
        loads: Executables loaded, reloads included.
        evictions: Loads that pushed another executable out.
        calls: Calls of a main program that were begun.
        micro_batches: Micro-batches run, dummy ones included.
        busy_s: Modelled time of all of them and of loading.
        load_s: Modelled time of loading alone.
        cycles: Modelled cycles of the slowest tile, all steps together.
        slow_micro_batches: Micro-batches that this host computed slower than the device would have.
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
        id: Of its first IPU.
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
        """How many IPUs it has."""
        return len(self.ipus)

    @property
    def timeline(self) -> Timeline:
        """When it is free. Confined to: the thread that has claimed it."""
        return self.ipus[0].timeline

    @property
    def is_attached(self) -> bool:
        """Whether it still has its IPUs."""
        return self._is_attached

    @property
    def metrics(self) -> DeviceMetrics:
        """Its counters so far: a snapshot. Everything in it is simulated."""
        return self._metrics

    @property
    def resident(self) -> LoadedProgramState | None:
        """The program it holds."""
        return self._resident

    def load(self, program: LoadedProgramState, is_stopped: Callable[[], bool]) -> None:
        """Puts `program` on the device, in place of what it held; nothing happens if it is there already.

        Raises:
            IpuRuntimeError: the device is detached, broken, or the caller was stopped while it waited for its turn.
        """
        with self._turn(program, is_stopped):
            self._make_resident(program)

    @contextmanager
    def claimed(self, program: LoadedProgramState, is_stopped: Callable[[], bool]) -> Iterator[Fault | None]:
        """Has the device for one call of `program`'s main program, loading it again first if another took its place.

        Yields:
            The fault that strikes this call; those that end it at once are raised instead.

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
        """Takes the program off; whoever uses it next loads it again."""
        with self._turns:
            self._resident = None

    def detach(self) -> None:
        """Gives the IPUs back to the system, once the call that they are in has ended; sessions on it fail from here on."""
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
        """From here on every use raises `error`, until `reset` cures it; a lost device is never cured."""
        with self._turns:
            self._broken = error
            self._resident = None
        if is_lost:
            with self.system.condition:
                for ipu in self.ipus:
                    ipu.is_lost = True

    def reset(self, action: RecoveryAction = RecoveryAction.IPU_RESET) -> None:
        """Makes a broken device usable again; it holds no program then.

        Raises:
            UnknownRuntimeError: the device is lost.
            RecoverableRuntimeError: it needs another reset than `action`; `FULL_RESET` cures all that a reset can.
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
        """Lets those who wait for their turn look whether they were stopped."""
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
            self.unload_from_device()  # without its weights it cannot run
            raise
