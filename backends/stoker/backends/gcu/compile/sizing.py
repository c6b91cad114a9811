"""The GCU cards to size a model for, and the modelled figures of a converted model on one of them, without compiling it."""

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from stoker.backends.gcu.compile.compiler import BuildFlag, apply_build_flag, batch_size_of, checked_graph, clusters_of
from stoker.backends.gcu.compile.cost_model import CODE_BYTES, FITTED, TIMING_ERROR, graph_cost
from stoker.backends.gcu.compile.limits import with_status
from stoker.backends.gcu.compile.memory import workspace_bytes
from stoker.backends.gcu.hardware import I20, GcuHardware
from stoker.backends.gcu.timing import copy_time_s
from stoker.compiler.lowering.rebatch import rebatch
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_prepared, tensor_facts
from stoker.compiler.options import CompilerOptions
from stoker.compiler.sizing import Estimate, MemoryUse, SizedDevice
from stoker.compiler.target import SourceModel


def sized_devices() -> Sequence[SizedDevice]:
    """Returns the card; a copy runs on all of its clusters."""
    return [SizedDevice(name=I20.name, unit="card", precisions=("fp16", "mixed", "fp32"))]


def sizing_options(device: SizedDevice, precision: str) -> Mapping[str, object]:
    """Returns the build flag that makes `precision`."""
    return {**device.options, "build_flag": precision}


def estimate(source: SourceModel, options: CompilerOptions, rows: int | None) -> Estimate:
    """Returns the figures of one run with `rows` samples, or those that `source` has, including the copies to and from the card.

    Raises:
        CompileError: the card cannot run the model, or an option is invalid.
    """
    with with_status():
        hardware = I20
        graph = checked_graph(source.model, source.outputs, hardware)
        own = batch_size_of([*graph.graph.inputs, *graph.graph.outputs])
        if rows is not None and rows != own:
            rebatch(graph, axis=0, old=own, new=rows)
            own = rows
        borders = [_stored_bytes(value) for value in (*graph.graph.inputs, *graph.graph.outputs)]
        apply_build_flag(graph, BuildFlag.of(options.build_flag))
        clusters = clusters_of(options.resource_mode, hardware)
        cost = graph_cost(graph, batch_size=own, hardware=hardware, constants=FITTED)
        latency_s = cost.run_s[clusters - 1] + sum(copy_time_s(hardware, size) for size in borders)
        return Estimate(
            rows=own,
            latency_s=latency_s,
            period_s=latency_s,
            time_factors=TIMING_ERROR.interval(1.0),  # the error is that of the latency
            error=TIMING_ERROR,
            memory=_memory(graph, sum(borders), hardware),
        )


def lowered(source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
    """Returns the graph that the simulated card computes, with every rounding explicit.

    Raises:
        CompileError: the card cannot run the model.
    """
    with with_status():
        graph = checked_graph(source.model, source.outputs, I20)
        apply_build_flag(graph, BuildFlag.of(options.build_flag))
        make_roundings_explicit(graph)
        check_prepared(graph, source.name)
        return onnx.load_model_from_string(serialise(graph))


def _memory(graph: ir.Model, border_bytes: int, hardware: GcuHardware) -> MemoryUse:
    weights = {
        id(value.const_value): value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value is not None
    }
    uses = {"weights": sum(weights.values()), "workspace": workspace_bytes(graph), "buffers": border_bytes, "code": CODE_BYTES}
    return MemoryUse(place="HBM of a card", by_category=uses, capacity_bytes=hardware.hbm_bytes)


def _stored_bytes(value: ir.Value) -> int:
    return tensor_facts(value, f"tensor '{value.name}'").byte_count
