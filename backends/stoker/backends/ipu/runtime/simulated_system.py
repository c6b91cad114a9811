"""The IPUs that this process pretends to have.

Nothing configured: four IPUs (as many as an M2000 has) of no version yet. Each takes version and tiles of what it is attached for and
forgets them when it is released, so that an executable compiled for ipu2 and one compiled for ipu21 both run without any set-up. To pin
the system down, make a `SimulatedSystem`, or set the environment before first use:

    STOKER_SIM_IPUS            how many IPUs
    STOKER_SIM_IPU_VERSION     ipu2 or ipu21 (or 2, 21)
    STOKER_SIM_TILES_PER_IPU   tiles of each
    STOKER_SIM_FAULTS          faults of the first IPU, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.backends.ipu.hardware import BY_VERSION
from stoker.backends.ipu.runtime.errors import RecoveryAction
from stoker.backends.simulated.faults import FaultKind, FaultPlan
from stoker.backends.simulated.pacing import HostClock, Timeline, WaitableClock

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
            _refuse_unknown(plan)
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


def _refuse_unknown(plan: FaultPlan) -> None:
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
