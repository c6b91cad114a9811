"""One model on its way into a program: checked, planned and lowered, with its streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from stoker.backends.ipu.compile.plan import GraphPlan, plan_graph
from stoker.backends.ipu.compile.streamed_weights import stream_weights
from stoker.backends.ipu.compile.streams import batch_size, input_anchor, output_anchor, weight_anchor
from stoker.backends.ipu.compile.supported import check_streams, check_supported
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.program import Binding, SubGraph
from stoker.compiler.errors import OptionError
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_output_shapes, check_prepared, static_shape, typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.precision.representation import float8_nodes
from stoker.compiler.target import SourceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraph:
    """One model of a program.

    Attributes:
        sub_graph: For the program.
        inputs, outputs: The anchors of its streams, with the tensors' names in the model beside them.
        weights: Anchors of streamed weights, and their values.
        plan: Its schedule and memory.
        precision: `fp32`, `fp16`, `fp8` or `fp8_weight`.
        micro_batch_size: 0 where the model has no batch dimension.
        notes: What passes left for the runtime: the converted model's metadata.
    """

    sub_graph: SubGraph
    inputs: tuple[tuple[str, Anchor], ...]
    outputs: tuple[tuple[str, Anchor], ...]
    weights: tuple[tuple[Anchor, ir.TensorProtocol], ...]
    plan: GraphPlan
    precision: str
    micro_batch_size: int
    notes: Mapping[str, str]


def checked_graph(source: SourceModel, hardware: IpuHardware) -> ir.Model:
    """A copy of a converted model with all types and shapes inferred, which `hardware` can run.

    Raises:
        CompileError: it cannot; all its unsupported operators are named.
    """
    model = typed_graph(source.model, tuple(source.outputs))
    check_streams(model)
    check_supported(model, hardware, has_custom_libraries=bool(source.custom_libraries))
    check_output_shapes(model)
    return model


def compile_graph(source: SourceModel, *, index: int, is_fused: bool, hardware: IpuHardware, options: CompilerOptions) -> CompiledGraph:
    """Checks, plans and lowers one converted model.

    Raises:
        CompileError: it cannot run on the device, or does not fit.
    """
    model = checked_graph(source, hardware)
    notes = {key: value for key, value in model.metadata_props.items() if value}
    precision = graph_precision(model)
    plan = plan_graph(model, hardware=hardware, options=options, name=source.name)
    inputs = _in_order(model.graph.inputs, source)
    outputs = list(model.graph.outputs)
    replicas, prefix = options.replication_factor, f"{source.name}/" if is_fused else ""
    streams_in = tuple(
        (value.name or "", input_anchor(f"{prefix}stream{at}" if is_fused else value.name or "", value, replicas))
        for at, value in enumerate(inputs)
    )
    streams_out = tuple((value.name or "", output_anchor(f"{prefix}{value.name}", value, replicas)) for value in outputs)
    rows = batch_size([static_shape(value) for value in inputs], [static_shape(value) for value in outputs], options.batch_axis)
    tensors = {} if options.constant_weights else stream_weights(model)
    there = {value.name: value for value in model.graph.inputs}
    make_roundings_explicit(model)
    check_prepared(model, source.name, source.custom_libraries)
    weights = tuple((weight_anchor(f"{prefix}{name}", there[name]), tensor) for name, tensor in tensors.items())
    sub_graph = SubGraph(
        index=index,
        name=source.name,
        onnx=serialise(model),
        inputs=tuple(Binding(anchor.name, tensor) for tensor, anchor in streams_in),
        outputs=tuple(Binding(anchor.name, tensor) for tensor, anchor in streams_out),
        weights=tuple(Binding(anchor.name, name) for (anchor, _), name in zip(weights, tensors, strict=True)),
        steps=plan.steps,
    )
    return CompiledGraph(
        sub_graph=sub_graph,
        inputs=streams_in,
        outputs=streams_out,
        weights=weights,
        plan=plan,
        precision=precision,
        micro_batch_size=rows,
        notes=notes,
    )


def _in_order(inputs: Sequence[ir.Value], source: SourceModel) -> list[ir.Value]:
    """The inputs as the source model orders them; passes may have added some, which follow, or taken some away."""
    positions = {name: at for at, name in enumerate(source.inputs)}
    return sorted(inputs, key=lambda value: positions.get(value.name or "", len(positions)))


def graph_precision(model: ir.Model) -> str:
    """The narrowest that `model` computes in: `fp32`, `fp16` or `fp8`; `fp8_weight` where eight bits are only stored."""
    uses = [use for _, use in float8_nodes(model)]
    if uses:
        return "fp8" if any(use.computes for use in uses) else "fp8_weight"
    dtypes = {value.dtype for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values()}
    dtypes |= {output.dtype for node in ir.traversal.RecursiveGraphIterator(model.graph) for output in node.outputs}
    return "fp16" if ir.DataType.FLOAT16 in dtypes else "fp32"


def check_names(graphs: tuple[CompiledGraph, ...]) -> None:
    """Anchors of a program must differ in name.

    Raises:
        OptionError: two have the same.
    """
    seen: set[str] = set()
    for graph in graphs:
        for anchor in (*(anchor for _, anchor in (*graph.inputs, *graph.outputs)), *(anchor for anchor, _ in graph.weights)):
            if anchor.name in seen:
                raise OptionError(f"two streams are called '{anchor.name}'; rename one of the tensors, or one of the models that are fused")
            seen.add(anchor.name)
