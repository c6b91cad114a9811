"""The options of IPUs.

The operator's settings, by `--backend-config=poplar,NAME=VALUE`:

    runtime                 simulated (default), vendor or auto: see `stoker.backends.devices.runtime`
    use_sim_if_no_hw        true: as runtime=auto; false: as runtime=vendor
    check_package_hash      true or false: the default for models

The others are for simulated IPUs:

    sim_num_IPUs            IPUs of the system (default 4)
    sim_ipu_version         ipu2 or ipu21; default: each attached IPU takes the version of its program
    sim_tiles_per_IPU       tiles of each IPU; default: the number in the program
    faults                  faults to inject on the first IPU, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
    pacing                  none, realtime or virtual: the default for models
    numerics                real or off: the default for models
    custom_op_libraries     paths of shared libraries with custom operators, separated by commas; they run native code in the server

The names of the first three and of `use_sim_if_no_hw` are those of the vendor's backend. Settings that are absent are read from the
environment (`stoker.backends.ipu.runtime.device`).

config.pbtxt `parameters` of a model:

    sub_graph                 the served model of a fused executable: its index, its name (`graph1`) or its source model's name
    synchronous_execution     1: one batch at a time; 0 (default): `pipeline_depth` batches are in flight at once
    pipeline_depth            1 to 16 batches in flight, default 3: one is read, one computed, one written
    timeout_ns                how long a device that has begun a call waits for data (default 10,000,000; 0: no limit)
    pacing, numerics          the effect of modelled time on the run, and whether the host computes outputs; default: the backend's setting
    check_package_hash        whether an executable of another compiler is rejected; default: the backend's setting
    auto_reset                whether a device that needs a reset is reset before the next batch (default true)
    device_ids                ids of the simulated IPUs that may be used, such as `0` or `2,3`; default: any

Parameters for simulated IPUs only: sub_graph, pacing, numerics, device_ids.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from stoker.backends.api.candidate import Violation
from stoker.backends.devices.options import ParameterReader, SettingsReader
from stoker.backends.ipu.runtime import RuntimeConfig, SimulatedSystem
from stoker.backends.ipu.runtime.runtime_config import MAX_TIMEOUT_NS
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing, VirtualClock

MAX_PIPELINE_DEPTH = 16
DEFAULT_PIPELINE_DEPTH = 3
_DEFAULT_TIMEOUT_NS = 10_000_000  # PopRT's RuntimeConfig

_VARIABLES = {
    "sim_num_IPUs": "STOKER_SIM_IPUS",
    "sim_ipu_version": "STOKER_SIM_IPU_VERSION",
    "sim_tiles_per_IPU": "STOKER_SIM_TILES_PER_IPU",
    "faults": "STOKER_SIM_FAULTS",
}
_SIMULATED = (*_VARIABLES, "pacing", "numerics", "custom_op_libraries")
_KNOWN = ("use_sim_if_no_hw", *_SIMULATED, "check_package_hash")
#: The setting of the vendor's backend that selects the runtime.
SIMULATION_FLAG = "use_sim_if_no_hw"

PARAMETER_KEYS = frozenset(
    {
        "sub_graph",
        "synchronous_execution",
        "pipeline_depth",
        "timeout_ns",
        "pacing",
        "numerics",
        "check_package_hash",
        "auto_reset",
        "device_ids",
    }
)

_SIMULATED_PARAMETERS = ("sub_graph", "pacing", "numerics", "device_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoolSettings:
    """The checked settings of the whole backend.

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
        """Reads the operator's settings.

        Raises:
            BackendSettingError: a name is unknown or a value is invalid; the text names all of them.
        """
        reader = SettingsReader("poplar", settings, _KNOWN)
        variables = {variable: settings[name] for name, variable in _VARIABLES.items() if name in settings}
        for name, variable in _VARIABLES.items():
            if name in settings:
                _check_variable(reader, name, variable)
        read = cls(
            environment={**os.environ, **variables},
            pacing=reader.choice("pacing", Pacing.NONE),
            numerics=reader.choice("numerics", Numerics.REAL),
            check_package_hash=reader.flag("check_package_hash", True),
            custom_op_libraries=tuple(Path(part.strip()) for part in settings.get("custom_op_libraries", "").split(",") if part.strip()),
        )
        reader.errors += [f"custom_op_libraries: there is no file '{path}'" for path in read.custom_op_libraries if not path.is_file()]
        reader.check()
        return read

    @property
    def is_virtual(self) -> bool:
        """Whether the system's clock is virtual; then all its models use virtual pacing."""
        return self.pacing is Pacing.VIRTUAL

    def system(self) -> SimulatedSystem:
        """Creates the system that the settings describe.

        Raises:
            ValueError: a `STOKER_SIM_*` variable is invalid.
        """
        system = SimulatedSystem.from_environment(self.environment)
        if self.is_virtual:
            system.clock = VirtualClock()
        return system


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSettings:
    """The checked settings of the runtime of real IPUs.

    Attributes:
        check_package_hash: Where a model's parameters do not say otherwise.
    """

    check_package_hash: bool = True
    pacing: ClassVar = Pacing.NONE
    numerics: ClassVar = Numerics.REAL

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> "VendorSettings":
        """Reads the operator's settings.

        Raises:
            BackendSettingError: a name is unknown, a value is invalid, or a setting is for simulated IPUs; the text names all of them.
        """
        reader = SettingsReader("poplar", settings, _KNOWN)
        for name in _SIMULATED:
            if name in settings:
                reader.reject(name, "is for simulated IPUs, and the runtime is the vendor's")
        read = cls(check_package_hash=reader.flag("check_package_hash", True))
        reader.check()
        return read


def read_vendor_parameters(parameters: Mapping[str, str], settings: VendorSettings) -> "ModelParameters":
    """Reads `parameters`. REQUIRES: `vendor_parameter_violations` found none."""
    return _read(ParameterReader(parameters), settings)


def vendor_parameter_violations(parameters: Mapping[str, str], settings: VendorSettings) -> Iterator[Violation]:
    """Returns a violation for each parameter with an invalid value, or for simulated IPUs only."""
    reader = ParameterReader(parameters)
    _read(reader, settings)
    for name in _SIMULATED_PARAMETERS:
        if name in parameters:
            reader.reject(name, "is for simulated IPUs, and the runtime is the vendor's")
    yield from reader.violations


def _check_variable(reader: SettingsReader, name: str, variable: str) -> None:
    """Records the simulated system's error for one setting."""
    value = reader.values[name]
    if not value:
        reader.errors.append(f"{name} is empty")
        return
    try:
        SimulatedSystem.from_environment({variable: value})
    except ValueError as error:
        reader.reject(name, str(error).partition(": ")[2].removeprefix(f"{variable}='{value}' "))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of an executable's run on its device. Models that share a resident executable have equal options.

    Attributes:
        timeout_ns, pacing, numerics, auto_reset: As in `RuntimeConfig`.
        device_ids: ids of IPUs that may be used; None: any.
    """

    timeout_ns: int = _DEFAULT_TIMEOUT_NS
    pacing: Pacing = Pacing.NONE
    numerics: Numerics = Numerics.REAL
    auto_reset: bool = True
    device_ids: frozenset[int] | None = None

    def runtime_config(self, *, settings: DevicePoolSettings, calls_in_flight: int, threads: int, is_fused: bool) -> RuntimeConfig:
        """Returns the configuration of the runner. The package hash was checked before."""
        return RuntimeConfig(
            timeout_ns=self.timeout_ns,
            validate_io_params=not is_fused,
            check_package_hash=False,
            ring_buffer_size_multiplier=max(2, calls_in_flight),
            auto_reset=self.auto_reset,
            numerics=self.numerics,
            pacing=self.pacing,
            threads=threads,
            custom_op_libraries=settings.custom_op_libraries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The parsed config.pbtxt `parameters` of one model.

    Attributes:
        sub_graph: The text of the parameter; empty if absent.
        pipeline_depth: Batches in flight.
        check_package_hash: Whether an executable of another compiler is rejected.
        run: The options of the run.
    """

    sub_graph: str
    pipeline_depth: int
    check_package_hash: bool
    run: RunOptions


def read_parameters(parameters: Mapping[str, str], settings: DevicePoolSettings) -> ModelParameters:
    """Reads `parameters`. REQUIRES: `parameter_violations` found none."""
    reader = ParameterReader(parameters)
    read = _read(reader, settings)
    assert not reader.violations, "parameter_violations was not called first"
    return read


def parameter_violations(parameters: Mapping[str, str], settings: DevicePoolSettings) -> Iterator[Violation]:
    """Returns a violation for each parameter with an invalid value."""
    reader = ParameterReader(parameters)
    read = _read(reader, settings)
    if "pacing" in parameters and (read.run.pacing is Pacing.VIRTUAL) != settings.is_virtual and read.run.pacing is not Pacing.NONE:
        reader.reject(
            "pacing",
            f"'{parameters['pacing']}' does not go with the system's clock: time is virtual for all models or for none, by "
            "--backend-config=poplar,pacing=virtual",
        )
    yield from reader.violations


def _read(reader: ParameterReader, settings: DevicePoolSettings | VendorSettings) -> ModelParameters:
    depth = reader.number("pipeline_depth", DEFAULT_PIPELINE_DEPTH, 1, MAX_PIPELINE_DEPTH)
    is_synchronous = reader.flag("synchronous_execution", False)
    if is_synchronous and "pipeline_depth" in reader.values and depth != 1:
        reader.reject("pipeline_depth", f"{depth} contradicts synchronous_execution, which means 1")
    return ModelParameters(
        sub_graph=reader.values.get("sub_graph", ""),
        pipeline_depth=1 if is_synchronous else depth,
        check_package_hash=reader.flag("check_package_hash", settings.check_package_hash),
        run=RunOptions(
            timeout_ns=reader.number("timeout_ns", _DEFAULT_TIMEOUT_NS, 0, MAX_TIMEOUT_NS),
            pacing=reader.choice("pacing", settings.pacing),
            numerics=reader.choice("numerics", settings.numerics),
            auto_reset=reader.flag("auto_reset", True),
            device_ids=reader.ids("device_ids", "simulated IPUs"),
        ),
    )
