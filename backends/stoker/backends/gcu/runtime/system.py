"""`GcuSystem`: the simulated cards of this process.

The default is one i20. To change it, create a `GcuSystem`, or set these environment variables before first use:

    STOKER_SIM_GCU_CARDS       number of cards
    STOKER_SIM_GCU_PACING      none, realtime or virtual
    STOKER_SIM_GCU_NUMERICS    real or off
    STOKER_SIM_GCU_FAULTS      faults of the first card, such as oom@3,hang@10 (backends/stoker/backends/simulated/faults.py)
"""

import itertools
import operator
import os
import threading
from collections.abc import Mapping, Sequence

from stoker.backends.gcu.hardware import I20, GcuHardware
from stoker.backends.gcu.runtime.card import Card, ProcessMark
from stoker.backends.gcu.runtime.device import Device
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import HostClock, Pacer, Pacing, VirtualClock, WaitableClock

DEFAULT_CARDS = 1
MAX_CARDS = 64


class GcuSystem:
    """A set of identical cards. Any thread may use it, but no forked process.

    Attributes:
        cards: All cards.
        numerics: Whether they compute outputs.
        host_threads: Threads of the host that one run may use.
        clock: The clock of all its times.
        process: The process that created it.
    """

    def __init__(
        self,
        cards: int = DEFAULT_CARDS,
        *,
        hardware: GcuHardware = I20,
        pacing: Pacing = Pacing.NONE,
        numerics: Numerics = Numerics.REAL,
        faults: Sequence[FaultPlan] = (),
        clock: WaitableClock | None = None,
        host_threads: int = 1,
    ) -> None:
        """Creates a system.

        Args:
            cards: Number of cards.
            hardware: The published figures of the cards.
            pacing: The effect of modelled time on the run.
            numerics: Whether the cards compute outputs.
            faults: Faults of the first card, the second, and so on. Further cards have none.
            clock: By default the machine's clock, or a new `VirtualClock` if pacing is virtual.
            host_threads: See the attribute.

        Raises:
            ValueError: a number is out of range, or a fault has a variant, which cards do not support.
        """
        if not 1 <= cards <= MAX_CARDS:
            raise ValueError(f"a simulated system has 1 to {MAX_CARDS} cards, not {cards}")
        if len(faults) > cards:
            raise ValueError(f"there are plans of faults for {len(faults)} cards, the simulated system has {cards}")
        if host_threads < 1:
            raise ValueError(f"a run needs at least one thread of the host, not {host_threads}")
        for fault in (each for plan in faults for each in plan.faults if each.detail):
            raise ValueError(f"fault '{fault.kind.value}:{fault.detail}@{fault.execution}': faults of a card have no variants")
        self.clock: WaitableClock = clock or (VirtualClock() if pacing is Pacing.VIRTUAL else HostClock())
        pacer = Pacer(self.clock, pacing)
        plans = [*faults, *(FaultPlan() for _ in range(cards - len(faults)))]
        self.process = ProcessMark()
        self.cards = tuple(Card(number, hardware, pacer, plans[number], self.process) for number in range(cards))
        self.hardware = hardware
        self.pacing = pacing
        self.numerics = numerics
        self.host_threads = host_threads
        self._lock = threading.Lock()
        self._devices: list[Device] = []
        self._numbers = itertools.count(1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "GcuSystem":
        """Returns the system that the `STOKER_SIM_GCU_*` variables describe.

        Raises:
            ValueError: a variable is invalid; the text names it.
        """
        cards = environment.get("STOKER_SIM_GCU_CARDS") or str(DEFAULT_CARDS)
        pacing = environment.get("STOKER_SIM_GCU_PACING") or Pacing.NONE.value
        numerics = environment.get("STOKER_SIM_GCU_NUMERICS") or Numerics.REAL.value
        if not cards.isdecimal():
            raise ValueError(f"STOKER_SIM_GCU_CARDS='{cards}' is no number")
        for name, value, kinds in (("PACING", pacing, Pacing), ("NUMERICS", numerics, Numerics)):
            known = [each.value for each in kinds]
            if value not in known:
                raise ValueError(f"STOKER_SIM_GCU_{name}='{value}': expected {' or '.join(known)}")
        try:
            plan = FaultPlan.parse(environment.get("STOKER_SIM_GCU_FAULTS", ""))
            return cls(int(cards), pacing=Pacing(pacing), numerics=Numerics(numerics), faults=[plan])
        except ValueError as error:
            raise ValueError(f"STOKER_SIM_GCU_* variables: {error}") from error

    def acquire(self, card: int = 0, clusters: int | Sequence[int] | None = None, *, is_exclusive: bool = False) -> Device:
        """Returns a handle to clusters of a card.

        Devices may share clusters; their runs then take turns. An exclusive device shares no cluster.

        Args:
            card: Its number, from 0.
            clusters: One cluster's number, or several; None or -1: all.
            is_exclusive: Whether no other device may have them.

        Raises:
            StatusError: a card or cluster does not exist, a cluster is named twice, or another device holds one exclusively.
        """
        self.process.check()
        try:
            card = operator.index(card)
        except TypeError:
            raise StatusError(Status.TIF_INVALID_PARAM, f"a card is chosen by its number, from 0, not by {card!r}") from None
        if not 0 <= card < len(self.cards):
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"there is no card {card}; the simulated system has {len(self.cards)}, numbered from 0"
            )
        chosen = self._chosen(card, clusters)
        with self._lock:
            for other in self._devices:
                shared = sorted(set(chosen) & set(other.clusters)) if other.card.id == card else []
                if shared and (is_exclusive or other.is_exclusive):
                    raise StatusError(
                        Status.TIF_MORE_CLUSTER_APPLIED,
                        f"cluster {shared[0]} of card {card} is taken by a device on clusters {list(other.clusters)}",
                    )
            device = Device(self, self.cards[card], chosen, is_exclusive=is_exclusive)
            self._devices.append(device)
        return device

    def close(self) -> None:
        """Releases all its devices."""
        for device in self.devices:
            device.release()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that are not released."""
        with self._lock:
            return tuple(self._devices)

    def forget(self, device: Device) -> None:
        """Removes a released device."""
        with self._lock:
            if device in self._devices:
                self._devices.remove(device)

    def next_number(self) -> int:
        """Returns a number that was not used before on this system."""
        return next(self._numbers)

    def _chosen(self, card: int, clusters: int | Sequence[int] | None) -> tuple[int, ...]:
        count = self.hardware.clusters
        if clusters is None or clusters == -1:
            return tuple(range(count))
        try:
            chosen = tuple(operator.index(each) for each in (clusters if isinstance(clusters, Sequence) else (clusters,)))
        except TypeError:
            raise StatusError(Status.TIF_INVALID_PARAM, f"clusters of card {card}: expected numbers, not {clusters!r}") from None
        if not chosen:
            raise StatusError(Status.TIF_INVALID_PARAM, f"no cluster of card {card} is asked for")
        if len(chosen) > count:
            raise StatusError(
                Status.TIF_MORE_CLUSTER_APPLIED,
                f"{len(chosen)} clusters of card {card} are asked for; a card of type {self.hardware.name} has {count}",
            )
        for cluster in chosen:
            if not 0 <= cluster < count:
                raise StatusError(
                    Status.TIF_MORE_CLUSTER_APPLIED,
                    f"there is no cluster {cluster} on card {card}; a card of type {self.hardware.name} has 0 to {count - 1}",
                )
        if len(set(chosen)) < len(chosen):
            raise StatusError(Status.TIF_INVALID_PARAM, f"clusters {list(chosen)} of card {card}: one is named twice")
        return tuple(sorted(chosen))


class _ProcessSystem:
    """Holds the system of this process. A forked process creates its own."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._system: GcuSystem | None = None

    def get(self) -> GcuSystem:
        with self._lock:
            if self._system is None:
                self._system = GcuSystem.from_environment()
            return self._system


_process_system = _ProcessSystem()


def process_system() -> GcuSystem:
    """Returns the system of this process, created from the environment at the first call.

    Raises:
        ValueError: a `STOKER_SIM_GCU_*` variable is invalid.
    """
    return _process_system.get()
