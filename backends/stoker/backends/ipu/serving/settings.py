"""`DevicePoolSettings`: what the operator says of the simulated IPUs, by `--backend-config=poplar,NAME=VALUE`.

    sim_num_IPUs            IPUs of the system (4 if nothing is said)
    sim_ipu_version         ipu2 or ipu21; without it each IPU takes the version of what it is attached for
    sim_tiles_per_IPU       tiles of each; likewise
    faults                  what goes wrong on the first IPU, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
    use_sim_if_no_hw        true: there is no other hardware here
    pacing                  none, realtime or virtual: for models whose config.pbtxt does not say
    numerics                real or off: likewise
    check_package_hash      true or false: likewise
    custom_op_libraries     paths of shared libraries with custom operators, separated by commas; they run native code in the server

The names of the first three and of `use_sim_if_no_hw` are those of the vendor's backend. What is not said is read from the environment
(`stoker.backends.ipu.runtime.simulated_system`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.api.errors import BackendSettingError
from stoker.backends.ipu.runtime import SimulatedSystem
from stoker.backends.simulated.clocks import VirtualClock
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing

_VARIABLES = {
    "sim_num_IPUs": "STOKER_SIM_IPUS",
    "sim_ipu_version": "STOKER_SIM_IPU_VERSION",
    "sim_tiles_per_IPU": "STOKER_SIM_TILES_PER_IPU",
    "faults": "STOKER_SIM_FAULTS",
}
_OWN = ("use_sim_if_no_hw", "pacing", "numerics", "check_package_hash", "custom_op_libraries")

#: How Triton's and Poplar's flags spell the two values, in lower case.
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoolSettings:
    """Settings of the whole backend, read and checked.

    Attributes:
        environment: The `STOKER_SIM_*` variables, overridden by the settings.
        pacing, numerics, check_package_hash: Where a model's parameters do not say otherwise.
        custom_op_libraries: Loaded with every model.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    pacing: Pacing = Pacing.NONE
    numerics: Numerics = Numerics.REAL
    check_package_hash: bool = True
    custom_op_libraries: tuple[Path, ...] = ()

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> "DevicePoolSettings":
        """What `settings` say.

        Raises:
            BackendSettingError: an unknown name, or a value that cannot be taken; names all that are wrong.
        """
        known = [*_VARIABLES, *_OWN]
        wrong = [f"there is no setting '{name}'; there are {', '.join(known)}" for name in settings if name not in known]
        variables = {variable: settings[name] for name, variable in _VARIABLES.items() if name in settings}
        environment = {**os.environ, **variables}
        for name, variable in _VARIABLES.items():
            if name in settings:
                wrong += _complaints(name, settings[name], {variable: settings[name]})
        wrong += [
            f"{name}='{settings[name]}': expected {allowed}"
            for name, values, allowed in (
                ("use_sim_if_no_hw", ["true", "1"], "true: all IPUs here are simulated"),
                ("pacing", [each.value for each in Pacing], "none, realtime or virtual"),
                ("numerics", [each.value for each in Numerics], "real or off"),
                ("check_package_hash", list(FLAGS), "true or false"),
            )
            if name in settings and settings[name].lower() not in values
        ]
        libraries = tuple(Path(part.strip()) for part in settings.get("custom_op_libraries", "").split(",") if part.strip())
        wrong += [f"custom_op_libraries: there is no file '{path}'" for path in libraries if not path.is_file()]
        if wrong:
            raise BackendSettingError(f"backend 'poplar': {'; '.join(wrong)}")
        return cls(
            environment=environment,
            pacing=Pacing(settings.get("pacing", Pacing.NONE.value).lower()),
            numerics=Numerics(settings.get("numerics", Numerics.REAL.value).lower()),
            check_package_hash=FLAGS[settings.get("check_package_hash", "true").lower()],
            custom_op_libraries=libraries,
        )

    @property
    def is_virtual(self) -> bool:
        """Whether the system's time moves only as its devices work; then all its models are paced so."""
        return self.pacing is Pacing.VIRTUAL

    def system(self) -> SimulatedSystem:
        """The system they describe.

        Raises:
            ValueError: a `STOKER_SIM_*` variable makes no sense.
        """
        system = SimulatedSystem.from_environment(self.environment)
        if self.is_virtual:
            system.clock = VirtualClock()
        return system


def _complaints(name: str, value: str, environment: Mapping[str, str]) -> list[str]:
    """What the simulated system says against one setting."""
    if not value:
        return [f"{name} is empty"]
    try:
        SimulatedSystem.from_environment(environment)
    except ValueError as error:
        reason = str(error).partition(": ")[2].removeprefix(f"{_VARIABLES[name]}='{value}' ")
        return [f"{name}='{value}': {reason}"]
    return []
