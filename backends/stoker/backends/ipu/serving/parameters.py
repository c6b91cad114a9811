"""`ModelParameters`: config.pbtxt `parameters` of a model on an IPU.

sub_graph                 which model of a fused executable is served: its index, its name (`graph1`) or its source model's name
synchronous_execution     1: one batch at a time; 0 (default): `pipeline_depth` batches are on their way at once
pipeline_depth            1 to 16 batches in flight, default 3: one is read, one computed, one written
timeout_ns                how long a device that has begun a call waits for data (default 10,000,000; 0: for ever)
pacing, numerics          what the modelled time does to the run, and whether the host computes; default: the backend's setting
check_package_hash        whether an executable of another compiler is refused; default: the backend's setting
auto_reset                whether a device that asks for a reset gets it before the next batch (default true)
device_ids                ids of the simulated IPUs that may be used, such as `0` or `2,3`; default: any
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stoker.backends.api.candidate import Violation, parameter_path
from stoker.backends.ipu.runtime import RuntimeConfig
from stoker.backends.ipu.runtime.runtime_config import MAX_TIMEOUT_NS
from stoker.backends.ipu.serving.settings import FLAGS, DevicePoolSettings
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing

MAX_PIPELINE_DEPTH = 16
_DEFAULT_PIPELINE_DEPTH = 3
_DEFAULT_TIMEOUT_NS = 10_000_000  # PopRT's RuntimeConfig

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

_Choice = TypeVar("_Choice", bound=enum.Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How an executable runs on its device. Models that share a resident executable agree in them.

    Attributes:
        timeout_ns, pacing, numerics, auto_reset: As in `RuntimeConfig`.
        device_ids: IPUs that may be used; None: any.
    """

    timeout_ns: int = _DEFAULT_TIMEOUT_NS
    pacing: Pacing = Pacing.NONE
    numerics: Numerics = Numerics.REAL
    auto_reset: bool = True
    device_ids: frozenset[int] | None = None

    def runtime_config(self, *, settings: DevicePoolSettings, calls_in_flight: int, threads: int, is_fused: bool) -> RuntimeConfig:
        """For the runner. The package hash was looked at before."""
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
    """All that config.pbtxt may say of one model, read.

    Attributes:
        sub_graph: As written; empty where it is not.
        pipeline_depth: Batches in flight.
        check_package_hash: Whether an executable of another compiler is refused.
        run: How it runs.
    """

    sub_graph: str
    pipeline_depth: int
    check_package_hash: bool
    run: RunOptions


def read_parameters(parameters: Mapping[str, str], settings: DevicePoolSettings) -> ModelParameters:
    """What `parameters`, of which `parameter_violations` had no complaint, say."""
    reading = _Reading(parameters)
    read = _read(reading, settings)
    assert not reading.wrong, "parameter_violations was not asked first"
    return read


def parameter_violations(parameters: Mapping[str, str], settings: DevicePoolSettings) -> Iterator[Violation]:
    """Every parameter whose value cannot be taken."""
    reading = _Reading(parameters)
    read = _read(reading, settings)
    yield from reading.wrong
    if "pacing" in parameters and (read.run.pacing is Pacing.VIRTUAL) != settings.is_virtual and read.run.pacing is not Pacing.NONE:
        yield Violation(
            parameter_path("pacing"),
            f"'{parameters['pacing']}' does not go with the system's clock: time is virtual for all models or for none, by "
            "--backend-config=poplar,pacing=virtual",
        )


def _read(reading: "_Reading", settings: DevicePoolSettings) -> ModelParameters:
    depth = reading.number("pipeline_depth", _DEFAULT_PIPELINE_DEPTH, 1, MAX_PIPELINE_DEPTH)
    is_synchronous = reading.flag("synchronous_execution", False)
    if is_synchronous and "pipeline_depth" in reading.parameters and depth != 1:
        reading.refuse("pipeline_depth", f"{depth} contradicts synchronous_execution, which means 1")
    return ModelParameters(
        sub_graph=reading.parameters.get("sub_graph", ""),
        pipeline_depth=1 if is_synchronous else depth,
        check_package_hash=reading.flag("check_package_hash", settings.check_package_hash),
        run=RunOptions(
            timeout_ns=reading.number("timeout_ns", _DEFAULT_TIMEOUT_NS, 0, MAX_TIMEOUT_NS),
            pacing=reading.choice("pacing", settings.pacing, Pacing),
            numerics=reading.choice("numerics", settings.numerics, Numerics),
            auto_reset=reading.flag("auto_reset", True),
            device_ids=reading.ids("device_ids"),
        ),
    )


class _Reading:
    """Parameters on their way in; what is wrong is collected, and the default taken instead."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters
        self.wrong: list[Violation] = []

    def refuse(self, key: str, message: str) -> None:
        self.wrong.append(Violation(parameter_path(key), message))

    def flag(self, key: str, default: bool) -> bool:
        text = self.parameters.get(key)
        if text is None:
            return default
        if text.lower() not in FLAGS:
            self.refuse(key, f"takes true, false, 1 or 0, not '{text[:40]}'")
        return FLAGS.get(text.lower(), default)

    def number(self, key: str, default: int, low: int, high: int) -> int:
        text = self.parameters.get(key)
        if text is None:
            return default
        if text.isascii() and text.isdecimal() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        self.refuse(key, f"takes a whole number from {low} to {high}, not '{text[:40]}'")
        return default

    def choice(self, key: str, default: _Choice, kind: type[_Choice]) -> _Choice:
        text = self.parameters.get(key)
        if text is None:
            return default
        for each in kind:
            if each.value == text.lower():
                return each
        self.refuse(key, f"takes {', '.join(str(each.value) for each in kind)}, not '{text[:40]}'")
        return default

    def ids(self, key: str) -> frozenset[int] | None:
        text = self.parameters.get(key)
        if text is None:
            return None
        parts = [part.strip() for part in text.split(",")]
        if all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
            return frozenset(int(part) for part in parts)
        self.refuse(key, f"takes ids of simulated IPUs, such as '0' or '2,3', not '{text[:40]}'")
        return None
