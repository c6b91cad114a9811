"""`Device`: the IPUs that a program runs on, and the one executable they hold."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from stoker.backends.ipu.runtime.errors import (
    ApplicationRuntimeError,
    ProgramEvicted,
    RecoverableRuntimeError,
    RecoveryAction,
    SessionStopped,
    UnknownRuntimeError,
)
from stoker.backends.ipu.runtime.simulated_system import SimulatedIpu, SimulatedSystem
from stoker.backends.simulated.faults import Fault
from stoker.backends.simulated.pacing import NS_PER_S, Timeline


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
        """What it counted so far: a snapshot. Everything in it is simulated."""
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
                self._refuse_if_unusable(program)
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

    def _refuse_if_unusable(self, program: LoadedProgramState) -> None:
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
