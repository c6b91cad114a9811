"""`Plan`: the result of `stoker plan` as plain data. It is computed once, and rendered as a table, as JSON and as a page.

Times are in seconds, memory in bytes, rates in rows per second.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.cli.plan.figures import Figure

#: Version of the JSON form. It changes if a key is renamed, removed or gets another meaning; new keys may appear without it.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """An input or output of the source model: name, ONNX's element type, and sizes (a name or `?` where variable)."""

    name: str
    datatype: str
    shape: Sequence[int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """The source model.

    Attributes:
        name: Of the file; of the model's folder in Triton's layout, NAME/VERSION/model.onnx.
        opset: Version of ONNX's operator set.
        nodes: Number of nodes.
        parameter_bytes: Bytes of the initialisers.
        inputs, outputs: Its tensors.
    """

    name: str
    opset: int
    nodes: int
    parameter_bytes: int
    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSupport:
    """One operator of the model on one target.

    Attributes:
        operator: Operator with the version of its definition.
        support: Which tools compile it: a value of `stoker.compiler.porting.Support`.
        nodes: Names of the nodes, at most the first few.
        count: Number of nodes.
        reason: Why.
        source: Where the vendor publishes the fact.
    """

    operator: str
    support: str
    nodes: Sequence[str]
    count: int
    reason: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Porting:
    """The porting check for one target.

    Attributes:
        target: `ipu`, `gcu` or `cpu`.
        ports: Whether every node can be compiled; None if it was not checked.
        operators: Operators, those that cannot be compiled first.
        problem: Why the check itself failed, or was not made; empty otherwise.
    """

    target: str
    ports: bool | None
    operators: Sequence[OperatorSupport] = ()
    problem: str = ""

    def nodes_with(self, support: str) -> int:
        """Returns the number of nodes with this support."""
        return sum(each.count for each in self.operators if each.support == support)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDrift:
    """The difference of one output from the source model's, in one precision."""

    output: str
    snr_db: float | None
    cosine: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The difference of a target's outputs in one precision from the source model's.

    Attributes:
        target, precision: What computes.
        outputs: One entry for each output.
        samples: What the models were run with.
        failures: Outputs that differ more from the source's than the precision explains.
        problem: Why nothing was compared; empty if it was.
    """

    target: str
    precision: str
    outputs: Sequence[OutputDrift] = ()
    samples: str = ""
    failures: Sequence[str] = ()
    problem: str = ""

    @property
    def snr_db(self) -> float | None:
        """The least signal-to-noise ratio of the outputs; None if none was compared."""
        return min((each.snr_db for each in self.outputs if each.snr_db is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The fullest place of a device."""

    place: str
    used_bytes: int
    capacity_bytes: int
    by_category: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The smallest change found that makes a combination fit.

    Attributes:
        change: The change in words: `batch 8`.
        precision, batch, count: With the change.
        latency, throughput: With the change: seconds of a call, rows per second.
        memory_levers: What the compiler changes by itself besides, one text each.
    """

    change: str
    precision: str
    batch: int
    count: int
    latency: Figure
    throughput: Figure
    memory_levers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One device in one precision with one batch size.

    Attributes:
        target: `ipu`, `gcu` or `cpu`.
        device: Name of the device.
        unit: What `count` counts: `card`, `IPU`, `host`.
        count: Devices that one copy of the model takes.
        precision, batch: Of the compiled model.
        fits: Whether it can be compiled for the device.
        latency: Seconds of a call with a full batch; None if there is no figure.
        period: Seconds between the ends of successive calls on a busy device.
        throughput: Rows per second of a busy device.
        memory: The fullest place; None if memory is no limit.
        error_source: Where the error bars come from.
        problem: Why it does not fit, in one line; empty if it does.
        remedy: What makes it fit; None if it fits or nothing was found.
        memory_levers: What the compiler changes by itself to make it fit, one text each.
        note: What a reader must know of the figures.
    """

    target: str
    device: str
    unit: str
    count: int
    precision: str
    batch: int
    fits: bool
    latency: Figure | None = None
    period: Figure | None = None
    throughput: Figure | None = None
    memory: Memory | None = None
    error_source: str = ""
    problem: str = ""
    remedy: Remedy | None = None
    memory_levers: Sequence[str] = ()
    note: str = ""

    @property
    def device_label(self) -> str:
        """The device with the number of them that one copy takes."""
        return self.device if self.count == 1 else f"{self.count} x {self.device}"

    def takes_no_more_than_needed(self, others: Iterable["Combination"]) -> bool:
        """Returns whether none of `others` runs the same on fewer devices."""
        return not any(
            other.fits
            and (other.target, other.device, other.precision, other.batch) == (self.target, self.device, self.precision, self.batch)
            and other.count < self.count
            for other in others
        )

    @property
    def label(self) -> str:
        """Device, precision and batch."""
        return f"{self.device_label}, {self.precision}, batch {self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadInfo:
    """The load to carry.

    Attributes:
        arrivals: `poisson` or `recorded`.
        rate_per_s: Mean requests per second.
        rows: Rows of a request; of the largest one if they differ.
        p99_goal_s: The goal for the 99th percentile of the latency.
        requests: Requests of each simulation.
        host_s: Time for which a response takes the server's event loop, seconds.
        request_overhead_s: Time of a request outside of queue, device and event loop, seconds.
    """

    arrivals: str
    rate_per_s: float
    rows: int
    p99_goal_s: float
    requests: int
    host_s: float = 0.0
    request_overhead_s: float = 0.0

    @property
    def host_text(self) -> str:
        """A clause about the host's share of a latency."""
        if not self.host_s and not self.request_overhead_s:
            return "network and host are not counted"
        return (
            f"each response takes {self.host_s * 1e3:.3g} ms of the event loop, and each request {self.request_overhead_s * 1e3:.3g} ms "
            "outside of queue, device and event loop"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCount:
    """How many devices carry the load in one combination.

    Attributes:
        combination: Index in `Plan.combinations`.
        label: Of the combination.
        devices: Fewest devices that meet the goal; the error bar is that of the device's times. An end is None if no number meets it.
        used: Devices of the figures below: enough at the slow end of the error bar if any number is, else by the modelled times.
        p50, p99: Latency of a request, seconds; the upper end is None if the devices are overloaded there.
        utilisation: Share of the time for which the devices are busy.
        capacity_share: The load as a share of what the devices complete in full batches and the host sends; None for recorded arrivals.
        mean_batch_rows: Mean rows of a batch.
        problem: Why the goal is not met; empty if it is.
    """

    combination: int
    label: str
    devices: Figure | None = None
    used: int = 0
    p50: Figure | None = None
    p99: Figure | None = None
    utilisation: Figure | None = None
    capacity_share: float | None = None
    mean_batch_rows: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The 99th percentile of the latency at one rate of Poisson arrivals."""

    rate_per_s: float
    p99: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """The latency of one combination over the rate of Poisson arrivals.

    Attributes:
        combination: Index in `Plan.combinations`.
        label: Of the combination.
        devices: Number of devices.
        points: By ascending rate.
    """

    combination: int
    label: str
    devices: int
    points: Sequence[RatePoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The load, how many devices carry it in each combination, and the latency of the best ones over the rate."""

    load: LoadInfo
    counts: Sequence[CardCount]
    curves: Sequence[RateCurve] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole result.

    Attributes:
        model: The source model.
        targets: Names of the targets.
        porting: The porting check for each target.
        accuracy: For each target and precision.
        combinations: Every device with every precision and batch size.
        load: How many devices carry the load; None if no load was given.
        recommendation: Sentences for a reader in a hurry, the most important first.
        notes: Warnings of the conversion, and what was left out.
        version: Version of Stoker.
    """

    model: SourceInfo
    targets: Sequence[str]
    porting: Sequence[Porting]
    accuracy: Sequence[Accuracy]
    combinations: Sequence[Combination]
    load: LoadPlan | None = None
    recommendation: Sequence[str] = ()
    notes: Sequence[str] = ()
    version: str = ""
    schema: int = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON-compatible data: the fields of these classes by name."""
        return dataclasses.asdict(self)

    @property
    def device_notes(self) -> Sequence[str]:
        """The notes of the devices, each once, with the names of the devices."""
        return list(dict.fromkeys(f"{each.device_label}: {each.note}" for each in self.combinations if each.note))

    def is_accurate(self, combination: Combination) -> bool:
        """Returns whether no output of the combination's precision is known to differ too much from the source model's."""
        accuracy = self.accuracy_of(combination.target, combination.precision)
        return accuracy is None or not accuracy.failures

    def accuracy_of(self, target: str, precision: str) -> Accuracy | None:
        """Returns the accuracy of a target in a precision; None if it was not compared."""
        return next((each for each in self.accuracy if (each.target, each.precision) == (target, precision)), None)
