"""Modelled times of a simulated IPU: computes the times of one call of the main program from the schedule in a `StaticProgram`.

A call of the main program runs `batches_per_step` micro-batches. The schedule of one micro-batch is a list of steps, each with the cycles
of its slowest tile. Steps in the same *lane* run in sequence; lanes run in parallel on successive micro-batches. Without overlapped IO and
pipelining there is one lane. With IO tiles, host reads and host writes are two further lanes. Each pipeline stage is one more lane. A full
pipeline completes a micro-batch in each period of its slowest lane; an empty pipeline must be filled first:

    latency of a call = sum of lanes + (micro-batches - 1) x slowest lane
    period of calls   = micro-batches x slowest lane

All times are modelled, never measured. Code that displays them must label them simulated.
"""

from collections import defaultdict
from dataclasses import dataclass

from stoker.backends.ipu.hardware import ATTACH_S, ENGINE_BUILD_BYTES_PER_S, SYSTEMS, IpuHardware
from stoker.backends.ipu.program import StaticProgram, Step, StepKind, SubGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Modelled times, in seconds, of one call of the main program for one sub-graph.

    The first six are totals over all micro-batches of a call. Lanes may overlap, so the sum may differ from the latency.

    Attributes:
        compute_s, exchange_s, sync_s: Computing on tiles, exchange between tiles, and waiting for the slowest tile.
        link_s: Transfers between IPUs.
        host_read_s, host_write_s: Transfers over the host link.
        latency_s: From the start of a call on an idle device to its last output on the host.
        period_s: Between the ends of successive calls while the device is kept busy; never longer than `latency_s`.
        rows: Rows of the batch dimension that a call takes, all replicas together; 0 where the model has no batch dimension.
    """

    compute_s: float
    exchange_s: float
    sync_s: float
    link_s: float
    host_read_s: float
    host_write_s: float
    latency_s: float
    period_s: float
    rows: int

    @property
    def rows_per_s(self) -> float:
        """Throughput of a busy device: rows per second, or calls per second without a batch dimension; 0 for an empty schedule."""
        return max(self.rows, 1) / self.period_s if self.period_s > 0 else 0.0


def hardware_of(program: StaticProgram) -> IpuHardware:
    """Returns the hardware that `program` was compiled for.

    Raises:
        ValueError: the system is unknown.
    """
    try:
        return SYSTEMS[program.system]
    except KeyError:
        raise ValueError(f"the program was compiled for system '{program.system}', known are {', '.join(sorted(SYSTEMS))}") from None


def step_timing(program: StaticProgram, graph_index: int = 0) -> StepTiming:
    """Returns the times of one call of the main program that runs the sub-graph with index `graph_index`.

    Raises:
        ValueError: the program has no such sub-graph, or was compiled for an unknown system.
    """
    graph = _graph(program, graph_index)
    clock_hz = hardware_of(program).clock_hz
    cycles: dict[StepKind, int] = defaultdict(int)
    for step in graph.steps:
        cycles[step.kind] += step.cycles
    lanes = lane_cycles(graph.steps, is_io_overlapped=program.num_io_tiles > 0, is_pipelined=program.pipeline_stages > 1)
    slowest = max(lanes, default=0)
    micro_batches = max(program.batches_per_step, 1)

    def call_s(kind: StepKind) -> float:
        return micro_batches * cycles[kind] / clock_hz

    return StepTiming(
        compute_s=call_s(StepKind.COMPUTE),
        exchange_s=call_s(StepKind.EXCHANGE),
        sync_s=call_s(StepKind.SYNC),
        link_s=call_s(StepKind.LINK),
        host_read_s=call_s(StepKind.HOST_READ),
        host_write_s=call_s(StepKind.HOST_WRITE),
        latency_s=(sum(lanes) + (micro_batches - 1) * slowest) / clock_hz,
        period_s=micro_batches * slowest / clock_hz,
        rows=program.micro_batch_size * micro_batches * max(program.replication_factor, 1),
    )


def lane_cycles(steps: tuple[Step, ...], *, is_io_overlapped: bool, is_pipelined: bool) -> list[int]:
    """Returns the cycles of one micro-batch in each lane, in the order in which it passes the lanes."""
    reads = writes = 0
    stages: dict[int, int] = defaultdict(int)
    for step in steps:
        if is_io_overlapped and step.kind is StepKind.HOST_READ:
            reads += step.cycles
        elif is_io_overlapped and step.kind is StepKind.HOST_WRITE:
            writes += step.cycles
        else:
            stages[step.stage if is_pipelined else 0] += step.cycles
    inner = [stages[stage] for stage in sorted(stages)]
    return [reads, *inner, writes] if is_io_overlapped else inner


def load_time_s(program: StaticProgram) -> float:
    """Returns the seconds until a device is ready for the first call: attaching, building the engine, and loading code and weights over the
    host link.

    Replicas are loaded at the same time, each over its own link.

    Raises:
        ValueError: the program was compiled for an unknown system.
    """
    hardware = hardware_of(program)
    engine_s = program.code_bytes / ENGINE_BUILD_BYTES_PER_S
    return ATTACH_S + engine_s + (program.code_bytes + program.weight_bytes) / hardware.host_link_bytes_per_s


def _graph(program: StaticProgram, index: int) -> SubGraph:
    for graph in program.graphs:
        if graph.index == index:
            return graph
    known = ", ".join(str(graph.index) for graph in program.graphs)
    raise ValueError(f"the program has no sub-graph with index {index}; it has {known or 'none'}")
