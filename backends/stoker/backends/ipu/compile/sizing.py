"""The IPU systems to size a model for, and the modelled figures of a converted model on one of them, without compiling it."""

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from stoker.backends.ipu.compile.assemble import check_options, check_sharding, choose_device, with_noted_options
from stoker.backends.ipu.compile.chosen_constants import chosen_constants
from stoker.backends.ipu.compile.constants import TIMING_ERROR
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.compile.sub_graph import batch_size, checked_graph
from stoker.backends.ipu.hardware import BOW, C600, M2000, IpuHardware
from stoker.backends.ipu.program import StaticProgram, SubGraph
from stoker.backends.ipu.timing import step_timing
from stoker.compiler.errors import ShapeError
from stoker.compiler.lowering.rebatch import rebatch
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_prepared, static_shape
from stoker.compiler.options import CompilerOptions
from stoker.compiler.sizing import Estimate, MemoryUse, SizedDevice, SizedModel, factors_of_latency, factors_of_throughput
from stoker.compiler.target import SourceModel

#: IPUs over which `virtual_graph_mode=auto` shards a copy: a machine has up to four.
_SHARDS = (1, 2, 4)
#: Timings of one system are published beside the model's error: the C600's.
_COMPARED = C600


def sized_devices() -> Sequence[SizedDevice]:
    """Returns every system, alone and sharded over two and four IPUs."""
    return [_device(hardware, count) for hardware in (C600, M2000, BOW) for count in _SHARDS]


def _device(hardware: IpuHardware, count: int) -> SizedDevice:
    is_card = hardware is C600
    options: dict[str, object] = {"system": hardware.system}
    if count > 1:
        options |= {"num_ipus": count, "virtual_graph_mode": "auto"}
    return SizedDevice(
        name=hardware.system,
        unit="card" if is_card else "IPU",
        count=count,
        precisions=("fp8", "fp8_weight", "fp16", "fp32") if hardware.fp8_flops else ("fp16", "fp32"),
        options=options,
        note="; ".join(
            note
            for note, is_needed in (
                (f"the model's error was found on {_COMPARED.system}", hardware is not _COMPARED),
                ("no sharded row is published, so that the error bar is that of one IPU", count > 1),
            )
            if is_needed
        ),
    )


class IpuSizedModel(SizedModel):
    """A model on one IPU system."""

    def __init__(self, source: SourceModel, options: CompilerOptions) -> None:
        """Checks the model.

        Raises:
            CompileError: the device cannot run the model, or an option is invalid.
        """
        self._hardware = choose_device(options)
        self._options = with_noted_options(options, [source])
        check_options(self._options, self._hardware)
        self._name = source.name
        self._model = checked_graph(source, self._hardware)
        self._rows = micro_batch_rows(self._model, self._options)

    def estimate(self, rows: int | None = None) -> Estimate:
        options, hardware = self._options, self._hardware
        if rows is not None and rows != self._rows:
            if self._rows < 1:
                raise ShapeError(f"the model has no batch dimension, so that it cannot be planned for {rows} rows")
            rebatch(self._model, axis=options.batch_axis, old=self._rows, new=rows)
            self._rows = rows
        plan = survey_graph(self._model, hardware=hardware, options=options, name=self._name)
        check_sharding(options, plan)
        timing = step_timing(scheduled_program([plan], [self._rows], [self._name], hardware, options))
        fullest = max(plan.memory, key=lambda account: max(account.tile_bytes, default=0))
        constants = chosen_constants(options)
        # The published error is that of throughputs, the error in a file of constants that of latencies.
        error = TIMING_ERROR if constants.is_fitted else constants.stated_error
        return Estimate(
            rows=max(timing.rows, 1),
            latency_s=timing.latency_s,
            period_s=timing.period_s,
            time_factors=factors_of_throughput(error) if constants.is_fitted else factors_of_latency(error),
            error=error,
            memory=MemoryUse(
                place=f"fullest tile{f' of IPU {fullest.ipu}' if options.num_ipus > 1 else ''}",
                by_category=fullest.by_category,
                capacity_bytes=fullest.capacity_bytes,
            ),
            memory_levers=plan.levers,
        )


def lowered(source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
    """Returns the graph that the simulated IPU computes, with every rounding explicit.

    Raises:
        CompileError: the device cannot run the model.
    """
    model = checked_graph(source, choose_device(options))
    make_roundings_explicit(model)
    check_prepared(model, source.name, source.custom_libraries)
    return onnx.load_model_from_string(serialise(model))


def scheduled_program(
    plans: Sequence[GraphPlan], rows: Sequence[int], names: Sequence[str], hardware: IpuHardware, options: CompilerOptions
) -> StaticProgram:
    """Returns the schedules as a program without graphs, to compute times from.

    Args:
        plans: The plan of each sub-graph.
        rows: Rows of a micro-batch of each.
        names: Name of each.
        hardware: The IPU.
        options: Of the compilation.
    """
    return StaticProgram(
        package_hash="",
        system=hardware.system,
        ipu_version=hardware.ipu_version,
        tiles_per_ipu=hardware.tiles,
        graphs=tuple(
            SubGraph(index=at, name=name, onnx=b"", inputs=(), outputs=(), steps=plan.steps)
            for at, (name, plan) in enumerate(zip(names, plans, strict=True))
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


def micro_batch_rows(model: ir.Model, options: CompilerOptions) -> int:
    """Returns the rows of one micro-batch of a converted model; 0 if it has no batch dimension."""
    inputs, outputs = ([static_shape(value) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return batch_size(inputs, outputs, options.batch_axis)
