"""How a session runs an executable."""

import enum
from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.ipu.runtime.device_wait import DeviceWaitConfig
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing


class LaunchPolicy(enum.Enum):
    """When a session takes its device."""

    IMMEDIATE = "Immediate"
    """At construction: the executable is on the device when the constructor returns."""
    DEFERRED = "Deferred"
    """With `run_load_programs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How a session runs an executable.

    Attributes:
        check_package_hash: Whether to refuse an executable that another version compiled.
        policy: When the device is taken.
        wait_config: What to do when no device is free.
        reloads_when_evicted: Whether the session loads its executable again when another one took the device; each reload takes
            modelled time and is counted. Otherwise its next call fails.
        numerics: Whether outputs are computed.
        pacing: What the modelled time does to the run.
        threads: Threads of this host that an operator may use.
        custom_op_libraries: Shared libraries with custom operators; they run native code in this process.
    """

    check_package_hash: bool = True
    policy: LaunchPolicy = LaunchPolicy.IMMEDIATE
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    reloads_when_evicted: bool = True
    numerics: Numerics = Numerics.REAL
    pacing: Pacing = Pacing.NONE
    threads: int = 1
    custom_op_libraries: tuple[Path, ...] = ()
