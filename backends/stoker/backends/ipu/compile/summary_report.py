"""The summary report of a compilation: the memory of the tiles, the cycles of the operators, and estimates for other batch sizes.

The report needs no lowering and no file, so it also covers models that do not fit: it names the missing bytes and the users of the memory.
Every figure is modelled; `report_page` renders them as a page.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from stoker.backends.ipu.compile.assemble import check_options, check_sharding, choose_device, with_noted_options
from stoker.backends.ipu.compile.memory import FusedPart, OutOfTileMemory, check_fit, fused_accounts
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.compile.porting import check_operators
from stoker.backends.ipu.compile.sizing import micro_batch_rows, scheduled_program
from stoker.backends.ipu.compile.sub_graph import checked_graph, graph_precision
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.program import MemoryAccount, StaticProgram, Step, StepKind
from stoker.backends.ipu.timing import StepTiming, lane_cycles, load_time_s, step_timing
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.lowering.rebatch import rebatch
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """One node, or one stream, in the schedule of a micro-batch; times in seconds.

    Attributes:
        node, op_type: Of the converted graph; `Stream` moves an input or output, `Copy` goes between IPUs.
        ipu, stage: IPU and pipeline stage that it runs on.
        start_s: Time since the start of the micro-batch, with all steps in sequence.
        compute_s, exchange_s, sync_s, link_s, host_s: Times by activity of the device.
        tiles: Most tiles that take part in a step.
        flops, data_bytes: Floating-point operations done and bytes moved.
    """

    node: str
    op_type: str
    ipu: int
    stage: int
    start_s: float
    compute_s: float
    exchange_s: float
    sync_s: float
    link_s: float
    host_s: float
    tiles: int
    flops: int
    data_bytes: int

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exchange_s + self.sync_s + self.link_s + self.host_s


def op_runs(steps: Sequence[Step], clock_hz: float) -> tuple[OpRun, ...]:
    """Returns the schedule of one micro-batch, node by node in order."""
    runs, begun = [], 0
    for gathered in _by_node(steps):
        runs.append(_run(gathered, begun, clock_hz))
        begun += sum(step.cycles for step in gathered)
    return tuple(runs)


def _by_node(steps: Sequence[Step]) -> list[list[Step]]:
    """Groups successive steps by node. A sync belongs to the step after it."""
    groups: list[list[Step]] = []
    waiting: list[Step] = []
    for step in steps:
        waiting.append(step)
        if step.kind is StepKind.SYNC:
            continue
        if not groups or (groups[-1][-1].node, groups[-1][-1].op_type) != (step.node, step.op_type):
            groups.append([])
        groups[-1] += waiting
        waiting = []
    return [*groups, waiting] if waiting else groups


def _run(gathered: Sequence[Step], begun: int, clock_hz: float) -> OpRun:
    spent: dict[StepKind, int] = defaultdict(int)
    for step in gathered:
        spent[step.kind] += step.cycles
    named = gathered[-1]
    return OpRun(
        node=named.node,
        op_type=named.op_type,
        ipu=named.ipu,
        stage=named.stage,
        start_s=begun / clock_hz,
        compute_s=spent[StepKind.COMPUTE] / clock_hz,
        exchange_s=spent[StepKind.EXCHANGE] / clock_hz,
        sync_s=spent[StepKind.SYNC] / clock_hz,
        link_s=spent[StepKind.LINK] / clock_hz,
        host_s=(spent[StepKind.HOST_READ] + spent[StepKind.HOST_WRITE]) / clock_hz,
        tiles=max(step.tiles for step in gathered),
        flops=sum(step.flops for step in gathered),
        data_bytes=sum(step.data_bytes for step in gathered),
    )


#: Batch sizes to plan besides the model's own.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_NOTE = "Simulated: every figure is computed by a cost model; no device was measured."
_TOP_HOLDERS = 12
#: Number of batch sizes that do not fit after which larger ones are skipped.
_VIOLATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEstimate:
    """The estimate for the model with another micro-batch size.

    Attributes:
        batch: Rows of a micro-batch.
        fits: Whether it fits into the tiles.
        tile_bytes: Bytes on the fullest tile.
        latency_s, rows_per_s: Latency and throughput of a call of the main program, even if it does not fit; None if it could not be
            planned.
        note: The reason why it could not be planned.
    """

    batch: int
    fits: bool
    tile_bytes: int = 0
    latency_s: float | None = None
    rows_per_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """One model of the executable.

    Attributes:
        name, index: In a fused executable `graphN`, and what selects it.
        precision: `fp32`, `fp16` or `fp8`.
        micro_batch_size: 0 where it has no batch dimension.
        timing: Of a call of the main program.
        lane_names, lane_s: The lanes that run in parallel on successive micro-batches, and the time of each.
        runs: The schedule of one micro-batch.
        batches: Estimates by batch size; empty without a batch dimension.
    """

    name: str
    index: int
    precision: str
    micro_batch_size: int
    timing: StepTiming
    lane_names: tuple[str, ...]
    lane_s: tuple[float, ...]
    runs: tuple[OpRun, ...]
    batches: tuple[BatchEstimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IpuMemory:
    """The memory of one IPU of a replica at the point of its highest use.

    Attributes:
        account: Bytes by category on the fullest tile, and the total of each tile.
        holders: The users of memory on the fullest tile, largest first.
    """

    account: MemoryAccount
    holders: tuple[tuple[str, int], ...]

    @property
    def fullest_bytes(self) -> int:
        return max(self.account.tile_bytes, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryReport:
    """The whole report.

    Attributes:
        hardware: The hardware of the plan.
        batches_per_step, num_io_tiles, num_ipus, replication_factor, pipeline_stages: Of the program.
        weight_bytes, code_bytes: Bytes that loading moves.
        load_s: Modelled time until the first call may begin.
        graphs: The models.
        memory: One entry per IPU.
        out_of_memory: The error text of compilation; empty if everything fits.
    """

    hardware: IpuHardware
    batches_per_step: int
    num_io_tiles: int
    num_ipus: int
    replication_factor: int
    pipeline_stages: int
    weight_bytes: int
    code_bytes: int
    load_s: float
    graphs: tuple[GraphReport, ...]
    memory: tuple[IpuMemory, ...]
    out_of_memory: str = ""

    @property
    def fits(self) -> bool:
        return not self.out_of_memory

    def to_json(self) -> str:
        """Returns the report as JSON: the fields of these classes by name, times in seconds."""
        fields = asdict(self)
        return json.dumps({"simulated": True, "note": _NOTE, "fits": self.fits, **fields}, indent=1) + "\n"


def summary_report(sources: Sequence[SourceModel], options: CompilerOptions, *, batch_sizes: Sequence[int] = BATCH_SIZES) -> SummaryReport:
    """Plans `sources` as `compile_sources` would, several as one fused program, and other batch sizes of each.

    Raises:
        CompileError: as `compile_sources`, except that a program that does not fit is reported, not rejected.
    """
    if not sources:
        raise OptionError("there is no model to report on")
    hardware = choose_device(options)
    options = with_noted_options(options, sources)
    check_options(options, hardware)
    is_fused = len(sources) > 1
    named = [replace(each, name=f"graph{at}") if is_fused else each for at, each in enumerate(sources)]
    check_operators(named, options, hardware)
    models = [checked_graph(each, hardware) for each in named]
    plans = [survey_graph(model, hardware=hardware, options=options, name=each.name) for each, model in zip(named, models, strict=True)]
    for plan in plans:
        check_sharding(options, plan)
    rows = [micro_batch_rows(model, options) for model in models]
    program = scheduled_program(plans, rows, [each.name for each in named], hardware, options)
    parts = [FusedPart(each.name, plan.memory) for each, plan in zip(named, plans, strict=True)]
    memory = [
        IpuMemory(account=account, holders=tuple(holders[:_TOP_HOLDERS]))
        for account, holders in (
            fused_accounts(parts, io_tiles=options.num_io_tiles) if is_fused else zip(plans[0].memory, plans[0].holders, strict=True)
        )
    ]
    reports = [
        GraphReport(
            name=source.name,
            index=at,
            precision=graph_precision(model),
            micro_batch_size=count,
            timing=step_timing(program, at),
            lane_names=_lane_names(program, plan),
            lane_s=tuple(cycles / hardware.clock_hz for cycles in _lanes(program, plan)),
            runs=op_runs(plan.steps, hardware.clock_hz),
            batches=_batches(source, count, hardware, options, batch_sizes),
        )
        for at, (source, model, plan, count) in enumerate(zip(named, models, plans, rows, strict=True))
    ]
    return SummaryReport(
        hardware=hardware,
        batches_per_step=program.batches_per_step,
        num_io_tiles=program.num_io_tiles,
        num_ipus=program.num_ipus,
        replication_factor=program.replication_factor,
        pipeline_stages=program.pipeline_stages,
        weight_bytes=program.weight_bytes,
        code_bytes=program.code_bytes,
        load_s=load_time_s(program),
        graphs=tuple(reports),
        memory=tuple(memory),
        out_of_memory=_violation(" + ".join(each.name for each in named), memory),
    )


def _lanes(program: StaticProgram, plan: GraphPlan) -> list[int]:
    return lane_cycles(plan.steps, is_io_overlapped=program.num_io_tiles > 0, is_pipelined=program.pipeline_stages > 1)


def _lane_names(program: StaticProgram, plan: GraphPlan) -> tuple[str, ...]:
    is_io_overlapped = program.num_io_tiles > 0
    inner = len(_lanes(program, plan)) - 2 * is_io_overlapped
    names = tuple(f"stage {stage}" for stage in range(inner)) if program.pipeline_stages > 1 else ("tiles",) * inner
    return ("load", *names, "store") if is_io_overlapped else names


def _violation(name: str, memory: Sequence[IpuMemory]) -> str:
    for each in memory:
        try:
            check_fit(each.account, name=name, holders=each.holders)
        except OutOfTileMemory as error:
            return str(error)
    return ""


def _batches(
    source: SourceModel, own: int, hardware: IpuHardware, options: CompilerOptions, sizes: Sequence[int]
) -> tuple[BatchEstimate, ...]:
    if own < 1:
        return ()
    found: list[BatchEstimate] = []
    for size in sorted({*sizes, own}):
        if size > own and sum(not each.fits and each.latency_s is not None for each in found) >= _VIOLATIONS:
            break
        found.append(_estimate(source, own, size, hardware, options))
    return tuple(found)


def _estimate(source: SourceModel, own: int, size: int, hardware: IpuHardware, options: CompilerOptions) -> BatchEstimate:
    model = typed_graph(source.model, tuple(source.outputs))
    try:
        rebatch(model, axis=options.batch_axis, old=own, new=size)
        plan = survey_graph(model, hardware=hardware, options=options, name=source.name)
    except CompileError as error:
        return BatchEstimate(batch=size, fits=False, note=str(error))
    timing = step_timing(scheduled_program([plan], [size], [source.name], hardware, options))
    tile_bytes = max(max(account.tile_bytes, default=0) for account in plan.memory)
    fits = all(max(account.tile_bytes, default=0) <= account.capacity_bytes for account in plan.memory)
    return BatchEstimate(batch=size, fits=fits, tile_bytes=tile_bytes, latency_s=timing.latency_s, rows_per_s=timing.rows_per_s)
