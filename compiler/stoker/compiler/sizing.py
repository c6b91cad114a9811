"""Sizing a model for devices without compiling it: the devices of a target, and what one call of a model would need on one of them.

`Target.sized_devices` lists the devices, `Target.sized_model` prepares a converted model for one, and `SizedModel.estimate` plans it with
any batch size. `stoker plan` compares them.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.backends.simulated.model_error import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedDevice:
    """A simulated device, or several that run one copy of a model together.

    Attributes:
        name: The vendor's name: `C600`, `i20`.
        unit: What `count` counts, in the singular: `card`, `IPU`.
        count: Devices over which one copy is sharded.
        precisions: Precisions that the device has, fastest first.
        options: Fields of `CompilerOptions` that select the device.
        note: What a reader must know of its figures; empty if nothing.
    """

    name: str
    unit: str
    count: int = 1
    precisions: Sequence[str] = ("fp16", "fp32")
    options: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    @property
    def label(self) -> str:
        """The name with the number of devices: `C600`, `2 x C600`."""
        return self.name if self.count == 1 else f"{self.count} x {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The memory that decides whether a model fits.

    Attributes:
        place: Where: `fullest tile`, `HBM of a card`.
        by_category: Bytes by use.
        capacity_bytes: Bytes that the place has.
    """

    place: str
    by_category: Mapping[str, int]
    capacity_bytes: int

    @property
    def used_bytes(self) -> int:
        """The bytes of all uses together."""
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        """Whether the place has that many."""
        return self.used_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The modelled figures of one call with a full batch, also of a model that does not fit. No device was measured.

    Attributes:
        rows: Rows of a call.
        latency_s: From the start of a call on an idle device to its last output on the host.
        period_s: Between the ends of successive calls on a busy device.
        time_factors: The lowest and the highest factor by which a device's times may differ from the modelled ones; None if nothing is
            published to compare with.
        error: Where these factors come from.
        memory: The fullest place.
        memory_levers: What the compiler changes by itself to make the model fit, one text each.
    """

    rows: int
    latency_s: float
    period_s: float
    time_factors: tuple[float, float] | None
    error: ModelError
    memory: MemoryUse
    memory_levers: Sequence[str] = ()


class SizedModel(abc.ABC):
    """A converted model, prepared to be planned with several batch sizes. After an error it is used no more."""

    @abc.abstractmethod
    def estimate(self, rows: int | None = None) -> Estimate:
        """Returns the modelled figures with `rows` rows of a batch, or those that the converted model has; also if it does not fit.

        Raises:
            ShapeError: this conversion cannot be planned with `rows`.
            CompileError: an option does not fit the model.
        """


def factors_of_latency(error: ModelError) -> tuple[float, float] | None:
    """Returns `Estimate.time_factors` for an error of modelled latencies; None if it says nothing."""
    return error.interval(1.0) if error.rows and error.worst < 1 else None


def factors_of_throughput(error: ModelError) -> tuple[float, float] | None:
    """Returns `Estimate.time_factors` for an error of modelled throughputs; None if it says nothing."""
    return (1 - error.worst, 1 + error.worst) if error.rows and error.worst < 1 else None
