"""The summary report of a compilation: what the tiles hold, where the cycles go, what other batch sizes would give.

Nothing is lowered or written for it, so that it exists for models that do not fit as well: it says by how much, and what holds the
memory. Every figure is modelled; `report_page` shows them as a page.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import onnx_ir as ir

from stoker.backends.ipu.compile.device_choice import check_options, check_sharding, choose_device
from stoker.backends.ipu.compile.memory import FusedPart, OutOfTileMemory, check_fit, fused_accounts
from stoker.backends.ipu.compile.op_runs import OpRun, op_runs
from stoker.backends.ipu.compile.pass_notes import with_noted_options
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.compile.rebatch import rebatch
from stoker.backends.ipu.compile.streams import batch_size
from stoker.backends.ipu.compile.sub_graph import checked_graph, graph_precision
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.program import MemoryAccount, StaticProgram, SubGraph
from stoker.backends.ipu.timing import StepTiming, lane_cycles, load_time_s, step_timing
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.lowering.typed_graph import static_shape, typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel

#: Batch sizes that are planned beside the model's own.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_NOTE = "Simulated: every figure is computed by a cost model; no device was measured."
_TOP_HOLDERS = 12
#: Batches that do not fit before larger ones are left out.
_VIOLATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEstimate:
    """The estimate for the model with another micro-batch.

    Attributes:
        batch: Rows of a micro-batch.
        fits: Into the tiles.
        tile_bytes: On the fullest tile.
        latency_s, rows_per_s: Of a call of the main program, as if it fitted; None where it could not be planned.
        note: Why not.
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
        lane_names, lane_s: What runs side by side on successive micro-batches, and how long each takes.
        runs: The schedule of one micro-batch.
        batches: By size; empty where there is no batch dimension.
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
    """What one IPU of a replica holds at its fullest moment.

    Attributes:
        account: Bytes by category on the fullest tile, and in all on each tile.
        holders: What takes them on the fullest tile, most first.
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
        hardware: What it was planned for.
        batches_per_step, num_io_tiles, num_ipus, replication_factor, pipeline_stages: Of the program.
        weight_bytes, code_bytes: What loading moves.
        load_s: Modelled time until the first call may begin.
        graphs: The models.
        memory: One entry an IPU.
        out_of_memory: The error that compiling gives; empty where everything fits.
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
        """The report for programs: the fields of these classes by their names, times in seconds."""
        fields = asdict(self)
        return json.dumps({"simulated": True, "note": _NOTE, "fits": self.fits, **fields}, indent=1) + "\n"


def summary_report(sources: Sequence[SourceModel], options: CompilerOptions, *, batch_sizes: Sequence[int] = BATCH_SIZES) -> SummaryReport:
    """Plans `sources` as `compile_sources` would, several as one fused program, and other batch sizes of each.

    Raises:
        CompileError: as `compile_sources`, except that a program without room is reported, not refused.
    """
    if not sources:
        raise OptionError("there is no model to report on")
    hardware = choose_device(options)
    options = with_noted_options(options, sources)
    check_options(options, hardware)
    is_fused = len(sources) > 1
    named = [replace(each, name=f"graph{at}") if is_fused else each for at, each in enumerate(sources)]
    models = [checked_graph(each, hardware) for each in named]
    plans = [survey_graph(model, hardware=hardware, options=options, name=each.name) for each, model in zip(named, models, strict=True)]
    for plan in plans:
        check_sharding(options, plan)
    rows = [_rows(model, options) for model in models]
    program = _program(plans, rows, named, hardware, options)
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


def _rows(model: ir.Model, options: CompilerOptions) -> int:
    inputs, outputs = ([static_shape(value) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return batch_size(inputs, outputs, options.batch_axis)


def _program(
    plans: Sequence[GraphPlan], rows: Sequence[int], sources: Sequence[SourceModel], hardware: IpuHardware, options: CompilerOptions
) -> StaticProgram:
    """The schedules as a program without arithmetic: what times are computed from."""
    return StaticProgram(
        package_hash="",
        system=hardware.system,
        ipu_version=hardware.ipu_version,
        tiles_per_ipu=hardware.tiles,
        graphs=tuple(
            SubGraph(index=at, name=source.name, onnx=b"", inputs=(), outputs=(), steps=plan.steps)
            for at, (source, plan) in enumerate(zip(sources, plans, strict=True))
        ),
        num_io_tiles=options.num_io_tiles,
        num_ipus=options.num_ipus,
        replication_factor=options.replication_factor,
        batches_per_step=options.batches_per_step,
        micro_batch_size=rows[0] if len(set(rows)) == 1 else 0,
        pipeline_stages=max(plan.pipeline_stages for plan in plans),
        code_bytes=sum(plan.code_bytes for plan in plans),
        weight_bytes=sum(plan.weight_bytes for plan in plans),
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
    timing = step_timing(_program([plan], [size], [source], hardware, options))
    tile_bytes = max(max(account.tile_bytes, default=0) for account in plan.memory)
    fits = all(max(account.tile_bytes, default=0) <= account.capacity_bytes for account in plan.memory)
    return BatchEstimate(batch=size, fits=fits, tile_bytes=tile_bytes, latency_s=timing.latency_s, rows_per_s=timing.rows_per_s)
