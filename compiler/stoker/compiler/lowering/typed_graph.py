"""Converts a model to a graph with the type and static shape of every value, as input for lowering and planning.

The module also makes names for added values and nodes, and checks at compile time that the simulated device's host can run the lowered
graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as ir_passes
from onnxscript import optimizer

from stoker.backends.simulated.numerics import GraphRunner, NumericsError
from stoker.compiler.culprit import culprit
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.passes.shape_inference import infer_shapes, light_proto
from stoker.compiler.passes.simplify import inline_functions


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The static shape of a value, its bits per element as stored on the device, and whether it is known at compile time."""

    shape: tuple[int, ...]
    bits: int
    is_constant: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def byte_count(self) -> int:
        return (self.elements * self.bits + 7) // 8

    @property
    def element_bytes(self) -> float:
        return self.bits / 8


def tensor_facts(value: ir.Value, where: str) -> TensorFacts:
    """Returns the facts of `value`.

    Raises:
        CompileError: its shape or dtype is unknown; `where` says at which node.
    """
    constant = value.const_value
    shape = value.shape if constant is None else constant.shape
    dtype = value.dtype if constant is None else constant.dtype
    if shape is None or dtype is None:
        raise CompileError(f"{where}: tensor '{value.name}' has no static shape or no dtype; the device needs both")
    dims = tuple(shape)
    if not all(isinstance(dim, int) for dim in dims):
        raise CompileError(f"{where}: tensor '{value.name}' has shape {shape}; every dimension must be fixed for the device")
    bits = 8 if dtype == ir.DataType.BOOL else round(dtype.itemsize * 8)
    return TensorFacts(tuple(int(dim) for dim in dims), bits, value.const_value is not None)  # type: ignore[arg-type]


def node_label(node: ir.Node) -> str:
    """Returns the label of `node` for errors and plans: its name, else the name of its first output, else its operator type."""
    if node.name:
        return node.name
    return next((output.name for output in node.outputs if output.name), node.op_type)


"""Operators that compute nothing, which hold on any device."""


def words(text: str) -> frozenset[str]:
    """Returns the set of words in `text`."""
    return frozenset(text.split())


#: Operators that only move, select or repeat elements, or change signs: each output element equals an input element up to its sign.
MOVING = words(
    """Abs Clip Compress Concat ConstantOfShape DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND GlobalMaxPool Hardmax
    Identity If Loop Max MaxPool MaxUnpool Min Neg OneHot Pad ReduceMax ReduceMin Relu Reshape ReverseSequence Scan Scatter ScatterElements
    ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where"""
)


class FreeNames:
    """Makes names that no value and no node of the model has."""

    def __init__(self, model: ir.Model) -> None:
        graphs = (model.graph, *model.graph.subgraphs())
        self._taken = {value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            self._taken |= {node.name, *(output.name for output in node.outputs)}

    def new(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            name, count = f"{wanted}.{count}", count + 1
        self._taken.add(name)
        return name


#: ONNX Runtime operators whose output has the type and shape of their first input; `onnx` has no shape inference for them.
_LIKE_FIRST_INPUT = words(
    """BiasGelu FastGelu Gelu MultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization
    SkipSimplifiedLayerNormalization"""
)


def typed_graph(model: onnx.ModelProto, outputs: tuple[str, ...] = ()) -> ir.Model:
    """Returns a copy of `model` with inferred types and shapes, inlined functions, and only the nodes that `outputs` (empty: all) need.

    The copy shares the tensors of `model`, which is not changed.

    Raises:
        OptionError: there is no such output.
        ShapeError: a dimension of an input is not fixed.
        CompileError: the model is no valid ONNX.
    """
    try:
        graph_model = ir.from_proto(model)
    except ir.serde.SerdeError as error:
        raise CompileError(f"the model cannot be read: {error}") from error
    inline_functions(graph_model)
    _keep_outputs(graph_model.graph, outputs)
    _drop_overridable_inputs(graph_model.graph)
    _check_shapes("input", graph_model.graph.inputs)
    ir_passes.RemoveUnusedNodesPass()(graph_model)
    _name_omitted_outputs(graph_model)
    infer_types(graph_model)
    if any(value.shape is None or not value.shape.is_static() for value in _outputs(graph_model)):
        # Sizes may be computed from shapes; constant folding makes them known. Decoded weights stay as stored.
        try:
            optimizer.fold_constants(graph_model, onnx_shape_inference=True, should_fold=_may_be_folded)
        except Exception as error:  # the optimizer runs nodes with ONNX's reference implementation, which may raise anything
            raise CompileError(f"the model's constants cannot be computed: {type(error).__name__}: {error}") from error
        ir_passes.RemoveUnusedNodesPass()(graph_model)
        infer_types(graph_model)
    return graph_model


def _name_omitted_outputs(model: ir.Model) -> None:
    """Names omitted outputs that precede named ones, such as an LSTM's sequence output: only named values get types and shapes."""
    names = FreeNames(model)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        last = max((at for at, output in enumerate(node.outputs) if output.name), default=0)
        for at, output in enumerate(node.outputs[:last]):
            if not output.name:
                output.name = names.new(f"{node.outputs[last].name}.omitted{at}")


def check_output_shapes(model: ir.Model) -> None:
    """Checks that the sizes of all outputs are known and equal the inferred sizes, whatever the model declares.

    Raises:
        ShapeError: naming the output and the dimension that is not known, or both shapes.
    """
    _check_shapes("output", model.graph.outputs)
    with light_proto(model) as proto:
        for declared in proto.graph.output:
            declared.type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    found = {each.name: each.type.tensor_type for each in inferred.graph.output}
    for value in model.graph.outputs:
        kind, producer, sizes = found.get(value.name or ""), value.producer(), static_shape(value)
        if kind is None or producer is None or not kind.HasField("shape"):
            continue
        given = [size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim]
        if len(given) != len(sizes) or any(size not in (None, mine) for size, mine in zip(given, sizes, strict=True)):
            listed = ", ".join("?" if size is None else str(size) for size in given)
            raise ShapeError(
                f"output '{value.name}' is declared as {list(sizes)}, but node '{producer.name}' ({producer.op_type}) gives [{listed}]"
            )


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """Returns the shape of a value whose sizes are all known.

    Raises:
        ShapeError: one is not.
    """
    sizes = [] if value.shape is None else [size for size in value.shape if isinstance(size, int)]
    if value.shape is None or len(sizes) != len(value.shape):
        raise ShapeError(f"tensor '{value.name}' has shape {value.shape}; the device runs static shapes only")
    return tuple(sizes)


def _keep_outputs(graph: ir.Graph, names: tuple[str, ...]) -> None:
    if not names:
        return
    there = {value.name: value for value in graph.outputs}
    missing = [name for name in names if name not in there]
    if missing:
        raise OptionError(f"the model has no output {', '.join(map(repr, missing))}; it has {', '.join(map(repr, there))}")
    graph.outputs[:] = [there[name] for name in names]


def _drop_overridable_inputs(graph: ir.Graph) -> None:
    """Removes inputs that have a default value: they are weights, not streams."""
    graph.inputs[:] = [value for value in graph.inputs if value.name not in graph.initializers]


def infer_types(model: ir.Model) -> None:
    """Infers types and shapes, including ONNX Runtime's contributed operators, in order of their dependencies."""
    infer_shapes(model)
    waiting = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain == "com.microsoft"]
    while waiting:
        done = [node for node in waiting if _infer_contributed(node)]
        if not done:
            return
        infer_shapes(model)
        waiting = [node for node in waiting if node not in done]


def _infer_contributed(node: ir.Node) -> bool:
    first = node.inputs[0] if node.inputs else None
    if first is None or first.dtype is None or first.shape is None:
        return False
    output, shape = node.outputs[0], list(first.shape)
    if node.op_type in _LIKE_FIRST_INPUT:
        output.dtype, output.shape = first.dtype, ir.Shape(shape)
        # The fourth output of SkipLayerNormalization is the sum; the others are statistics that inference does not use.
        if len(node.outputs) > 3:
            node.outputs[3].dtype, node.outputs[3].shape = first.dtype, ir.Shape(shape)
        return True
    if node.op_type == "FusedMatMul":
        return _infer_fused_matmul(node, first)
    if node.op_type == "Attention" and len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].shape is not None:
        sizes = node.attributes.get("qkv_hidden_sizes")
        # Weights are [input, 3 x hidden] if Q, K and V have equal sizes.
        last = sizes.as_ints()[2] if sizes is not None else static_shape(node.inputs[1])[1] // 3
        output.dtype, output.shape = first.dtype, ir.Shape([*shape[:-1], last])
        return True
    return False


def _infer_fused_matmul(node: ir.Node, first: ir.Value) -> bool:
    second = node.inputs[1]
    if second is None or second.shape is None or first.shape is None or first.dtype is None:
        return False
    if len(first.shape) < 2 or len(second.shape) < 2:
        return False
    flags = {key: bool(flag.as_int()) for key, flag in node.attributes.items() if key.startswith("trans")}
    if flags.get("transBatchA") or flags.get("transBatchB"):
        return False
    left, right = list(first.shape), list(second.shape)
    rows = left[-1] if flags.get("transA") else left[-2]
    columns = right[-2] if flags.get("transB") else right[-1]
    batch = left[:-2] if len(left) >= len(right) else right[:-2]
    node.outputs[0].dtype, node.outputs[0].shape = first.dtype, ir.Shape([*batch, rows, columns])
    return True


def _may_be_folded(node: ir.Node) -> bool | None:
    """Returns False to keep a node; None leaves the decision to the optimizer."""
    return False if node.op_type in ("QuantizeLinear", "DequantizeLinear") else None


def _outputs(model: ir.Model) -> list[ir.Value]:
    """Returns the outputs of all nodes that have a reader, and the graph's outputs."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return [*model.graph.outputs, *(output for node in nodes for output in node.outputs if output.uses())]


def _check_shapes(role: str, values: Sequence[ir.Value]) -> None:
    for value in values:
        if value.shape is None:
            raise ShapeError(f"{role} '{value.name}' has no shape; the device runs static shapes only")
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                raise ShapeError(f"{role} '{value.name}': dimension {axis} is variable ({size}); fix it by input_shape or batch_size")


def check_prepared(model: ir.Model, name: str, custom_libraries: Sequence[str] = ()) -> None:
    """Creates an ONNX Runtime session for the lowered graph `model` as the runtime does, with large weights as inputs.

    Args:
        model: The lowered model.
        name: Name of the model in messages.
        custom_libraries: Libraries of ONNX Runtime custom operators that its nodes need.

    Raises:
        CompileError: ONNX Runtime has no kernel for a node, or finds the graph invalid.
    """
    libraries = [Path(each) for each in custom_libraries]

    def rejection(proto: onnx.ModelProto) -> NumericsError | None:
        try:
            GraphRunner(proto.SerializeToString(), custom_op_libraries=libraries)
        except NumericsError as error:
            return error
        return None

    with light_proto(model) as proto:
        error = rejection(proto)
    if error is not None:
        node = culprit(proto, lambda alone: rejection(alone) is not None)
        where = f" because of {node}" if node else ""
        raise CompileError(f"model '{name}' compiles, but cannot be run on the simulated device{where}: {error}") from error
