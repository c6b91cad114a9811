"""Compiles one model for a program: checks, plans and lowers it, and creates its streams.

Names of anchors: a single model keeps its tensors' names; a fused one has `graphN/streamK` for inputs, by their order in the source model,
and `graphN/<output>`. Handles have PopART's forms: `h2d_<id>` and `anchor_d2h_<id>`.

Weights that are not compiled in (`constant_weights: false`): the runtime loads them from tensor data in the file, or from the user. Poplar
makes every trained parameter such a stream. Here it is every floating-point constant with more than one element, except where ONNX
Runtime's kernels need the value when the graph is loaded. Weights in eight bits stay compiled in: their scale belongs to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from stoker.backends.ipu.compile.half_partials import half_contractions, round_partial_sums
from stoker.backends.ipu.compile.plan import GraphPlan, plan_graph
from stoker.backends.ipu.compile.supported import check_streams, check_supported
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.popef.schema import Anchor, DataType, TensorInfo, TensorType
from stoker.backends.ipu.program import Binding, SubGraph
from stoker.compiler.convert.drift_check import check_lowered
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_output_shapes, check_prepared, static_shape, tensor_facts, typed_graph
from stoker.compiler.lowering.variable_rows import with_variable_rows
from stoker.compiler.marks import SOURCE_OPERATORS
from stoker.compiler.options import CompilerOptions
from stoker.compiler.precision.representation import float8_nodes
from stoker.compiler.target import SourceModel

#: PopART's numbers of the programs in an inference executable.
WEIGHTS_FROM_HOST, PROGRAM, WEIGHTS_TO_HOST = 0, 5, 7
PROGRAM_NAMES: Mapping[int, str] = {WEIGHTS_FROM_HOST: "WeightsFromHost", PROGRAM: "Program", WEIGHTS_TO_HOST: "WeightsToHost"}

INDEX_ANCHOR = "index"

_FLOAT8 = {np.dtype(ml_dtypes.float8_e4m3fnuz): DataType.F8143, np.dtype(ml_dtypes.float8_e5m2fnuz): DataType.F8152}


def tensor_info(value: ir.Value, replication_factor: int = 1) -> TensorInfo:
    """Returns type and shape of `value`, with a leading dimension for the replicas if there are several.

    Raises:
        CompileError: PopEF has no such type.
    """
    assert value.dtype is not None
    dtype = value.dtype.numpy()
    try:
        data_type = _FLOAT8[dtype] if dtype in _FLOAT8 else DataType.of(dtype)
    except KeyError:
        raise CompileError(f"tensor '{value.name}' is {value.dtype.name}, which PopEF has no type for") from None
    shape = static_shape(value)
    return TensorInfo((replication_factor, *shape) if replication_factor > 1 else shape, data_type)


def input_anchor(name: str, value: ir.Value, replication_factor: int) -> Anchor:
    """Returns the stream that feeds `value` in each call of the main program."""
    return Anchor(
        name=name,
        handle=f"h2d_{name}",
        tensor_info=tensor_info(value, replication_factor),
        type=TensorType.INPUT,
        is_per_replica=replication_factor > 1,
        programs=(PROGRAM,),
    )


def output_anchor(name: str, value: ir.Value, replication_factor: int) -> Anchor:
    """Returns the stream that outputs `value` after each call of the main program."""
    return Anchor(
        name=name,
        handle=f"anchor_d2h_{name}",
        tensor_info=tensor_info(value, replication_factor),
        type=TensorType.OUTPUT,
        is_per_replica=replication_factor > 1,
        programs=(PROGRAM,),
    )


def weight_anchor(name: str, value: ir.Value) -> Anchor:
    """Returns the stream that loads a weight once, with the same data for all replicas."""
    return Anchor(name=name, handle=f"h2d_{name}", tensor_info=tensor_info(value), type=TensorType.INPUT, programs=(WEIGHTS_FROM_HOST,))


def index_anchor() -> Anchor:
    """The input that selects a model of a fused program: uint8 of shape [1], as in PopRT's tutorial."""
    return Anchor(
        name=INDEX_ANCHOR,
        handle=f"h2d_{INDEX_ANCHOR}",
        tensor_info=TensorInfo((1,), DataType.U8),
        type=TensorType.INPUT,
        programs=(PROGRAM,),
    )


def batch_size(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], axis: int) -> int:
    """Rows of one micro-batch: the size of dimension `axis` in every output and at least one input; 0 if there is none.

    An input without it, such as a scalar or a table, is the same for all rows.
    """
    sizes = _sizes(outputs, axis)
    return sizes.pop() if len(sizes) == 1 and sizes <= _sizes(inputs, axis) else 0


def is_batched(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], axis: int) -> bool:
    """Whether every stream has the rows, so that a server may join requests in a call."""
    return batch_size(inputs, outputs, axis) > 0 and len(_sizes([*inputs, *outputs], axis)) == 1


def _sizes(shapes: Sequence[Sequence[int]], axis: int) -> set[int]:
    return {shape[axis] if axis < len(shape) else 0 for shape in shapes}


_NEED_CONSTANTS = frozenset({"Pad", "Resize", "Upsample"})


def stream_weights(model: ir.Model) -> Mapping[str, ir.TensorProtocol]:
    """Turns the weights of `model` into inputs, in place; returns their values by name."""
    graph = model.graph
    found = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            continue
        if value.is_graph_output() or any(use.node.op_type in _NEED_CONSTANTS for use in value.uses()):
            continue
        found[name] = tensor
        value.dtype, value.shape = tensor.dtype, tensor.shape  # type: ignore[assignment] # a tensor's shape is an ir.Shape
        graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraph:
    """One model of a program.

    Attributes:
        sub_graph: Its part of the program.
        inputs, outputs: The anchors of its streams, with the names of the tensors in the model.
        weights: Anchors of streamed weights, and their values.
        plan: Its schedule and memory.
        precision: `fp32`, `fp16`, `fp8` or `fp8_weight`.
        micro_batch_size: Rows of a micro-batch; 0 if the model has no batch dimension.
        notes: Notes of passes for the runtime: the converted model's metadata.
        padded_on_host: Why the host cannot compute fewer rows than the micro-batch; empty if it can.
    """

    sub_graph: SubGraph
    inputs: tuple[tuple[str, Anchor], ...]
    outputs: tuple[tuple[str, Anchor], ...]
    weights: tuple[tuple[Anchor, ir.TensorProtocol], ...]
    plan: GraphPlan
    precision: str
    micro_batch_size: int
    notes: Mapping[str, str]
    padded_on_host: str


def checked_graph(source: SourceModel, hardware: IpuHardware) -> ir.Model:
    """Returns a copy of a converted model with all types and shapes inferred. Checks that `hardware` can run it.

    Raises:
        CompileError: the hardware cannot run it; the text names all unsupported operators.
    """
    model = typed_graph(source.model, tuple(source.outputs))
    check_streams(model)
    check_supported(model, hardware, has_custom_libraries=bool(source.custom_libraries))
    check_output_shapes(model)
    return model


def compile_graph(source: SourceModel, *, index: int, is_fused: bool, hardware: IpuHardware, options: CompilerOptions) -> CompiledGraph:
    """Checks, plans and lowers one converted model.

    Raises:
        CompileError: the model cannot run on the device, or does not fit.
    """
    model = checked_graph(source, hardware)
    notes = {key: value for key, value in model.metadata_props.items() if value and key != SOURCE_OPERATORS}
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
    contractions = half_contractions(model) if options.partials_type == "half" else []
    make_roundings_explicit(model)
    round_partial_sums(model, contractions)
    check_prepared(model, source.name, source.custom_libraries)
    if contractions:
        check_lowered(source.model, ir.to_proto(model), precision, allow_drift=source.allow_drift)
    graph, padded = serialise(model), ""
    if options.batch_axis == 0 and is_batched([static_shape(each) for each in inputs], [static_shape(each) for each in outputs], 0):
        row_bytes = sum(tensor_facts(each, source.name).byte_count for each in (*inputs, *outputs)) // rows
        graph, padded = with_variable_rows(
            graph, rows, row_bytes=row_bytes, streamed={name: each.numpy() for name, each in tensors.items()}
        )
    weights = tuple((weight_anchor(f"{prefix}{name}", there[name]), tensor) for name, tensor in tensors.items())
    sub_graph = SubGraph(
        index=index,
        name=source.name,
        onnx=graph,
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
        padded_on_host=padded,
    )


def _in_order(inputs: Sequence[ir.Value], source: SourceModel) -> list[ir.Value]:
    """Returns the inputs in the order of the source model. Inputs that passes added follow; passes may also have removed some."""
    positions = {name: at for at, name in enumerate(source.inputs)}
    return sorted(inputs, key=lambda value: positions.get(value.name or "", len(positions)))


def graph_precision(model: ir.Model) -> str:
    """Returns the narrowest type of the computations of `model`: `fp32`, `fp16` or `fp8`; `fp8_weight` where eight bits are only stored."""
    uses = [use for _, use in float8_nodes(model)]
    if uses:
        return "fp8" if any(use.computes for use in uses) else "fp8_weight"
    dtypes = {value.dtype for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values()}
    dtypes |= {output.dtype for node in ir.traversal.RecursiveGraphIterator(model.graph) for output in node.outputs}
    return "fp16" if ir.DataType.FLOAT16 in dtypes else "fp32"


def check_names(graphs: tuple[CompiledGraph, ...]) -> None:
    """Checks that the anchors of a program have different names.

    Raises:
        OptionError: two anchors have the same name.
    """
    seen: set[str] = set()
    for graph in graphs:
        for anchor in (*(anchor for _, anchor in (*graph.inputs, *graph.outputs)), *(anchor for anchor, _ in graph.weights)):
            if anchor.name in seen:
                raise OptionError(f"two streams are called '{anchor.name}'; rename one of the tensors, or one of the models that are fused")
            seen.add(anchor.name)
