"""Changes one number type of a model into another wherever ONNX lets an operator have the other, with casts where it does not.

ONNX's schemas say of every input and output which types it may have. A tensor of the old type becomes one of the new type if its producer
may give that; a reader that may not take it, or that is to be kept as it was, gets it through a Cast. So Reshape keeps its INT64 shape,
Resize its FLOAT scales, Loop its INT64 counter. Constants are converted once for each of the two types that readers want.

ONNX Runtime's CPU provider is asked which operators it can run with which types, since it publishes no list in machine's form. Half
floats: where it has no kernel of its own it casts to FLOAT and back by itself, which counts as running. Integers: an operator that it has
for INT64 may be missing for INT32.

`overflow_prone` finds patterns that are known to leave the range of FLOAT16 (65504) on ordinary activations, and so are worth computing in FLOAT.

| pattern | why |
|---|---|
| `Pow` with a constant exponent of 2 or more, `Mul` of a tensor with itself, up to the reduction, epsilon and root after it | 256^2 > 65504: variances, RMS and L2 norms, x^3 of GELU |
| `ReduceL2`, `ReduceSumSquare`, `ReduceLogSumExp`, `LpNormalization`, `GlobalLpPool` | the same inside one operator |
| `Exp` and what sums, shifts, divides or takes the logarithm of it | e^12 > 65504: softmax, log-sum-exp and softplus written out |
| `ReduceSum`, `ReduceMean` over more than `LONG_SUM` elements, `CumSum` along as many | the sum passes the range though no element does |
| `Softmax`, `LogSoftmax` of a sum with a mask beyond the range | clipped masks add up to -inf, and a row of -inf has no softmax |
"""  # noqa: E501  a table's rows

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from stoker.compiler.errors import CompileError
from stoker.compiler.precision.number_types import HALF_LIMIT

_known: dict[tuple[object, ...], bool] = {}


def has_kernel(
    node: ir.Node,
    inputs: Sequence[ir.TypeProtocol | None],
    outputs: Sequence[ir.TypeProtocol | None],
    opset: int,
    types_of_outputs: Mapping[str, ir.DataType],
) -> bool:
    """Whether a node like `node`, with inputs and outputs of these types, can run; each question is asked once in a process.

    Args:
        node: Its operator and attributes are what is asked about.
        inputs: The type of each; None where it is left out or unknown.
        outputs: Likewise.
        opset: Of the node's domain.
        types_of_outputs: Attributes that name an output's type, as they would be.
    """
    key = (node.domain, node.op_type, opset, tuple(map(str, inputs)), tuple(map(str, outputs)))
    if key not in _known:
        _known[key] = _can_create_session(node, inputs, outputs, opset, types_of_outputs)
    return _known[key]


def _can_create_session(
    node: ir.Node,
    inputs: Sequence[ir.TypeProtocol | None],
    outputs: Sequence[ir.TypeProtocol | None],
    opset: int,
    types_of_outputs: Mapping[str, ir.DataType],
) -> bool:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name="asked")
    given, made = [], []
    for index, kind in enumerate(inputs):
        proto.input.append("" if kind is None else f"i{index}")
        if kind is not None:
            given.append(onnx.ValueInfoProto(name=f"i{index}", type=ir.serde.serialize_type(kind)))
    for index, kind in enumerate(outputs):
        proto.output.append("" if kind is None else f"o{index}")
        if kind is not None:
            made.append(onnx.ValueInfoProto(name=f"o{index}", type=ir.serde.serialize_type(kind)))
    for name, attribute in node.attributes.items():
        if name not in types_of_outputs and not attribute.is_ref():
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
    for name, data_type in types_of_outputs.items():
        proto.attribute.append(onnx.helper.make_attribute(name, int(data_type)))
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "asked", given, made), opset_imports=[onnx.helper.make_opsetid(node.domain, opset)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NoKernel:
        return False
    except Exception:  # noqa: BLE001  a node out of its graph may be rejected for want of a shape or a constant: no response about the types
        return True
    return True


#: Which attribute holds the type of the output, where it is not an input's. `Constant` nodes are made initialisers first.
_TYPE_ATTRIBUTES = {
    **dict.fromkeys(("EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"), "dtype"),
    **dict.fromkeys(("Multinomial", "SequenceEmpty"), "dtype"),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"), "output_datatype"),
    "Cast": "to",
}
#: Inputs that schemas let have either type of integers, but ONNX's shape inference (Pad) or its definition by a function (CenterCropPad)
#: takes as INT64 only.
_KEPT_INPUTS = frozenset({("", "Pad", 3), ("", "CenterCropPad", 1)})
#: ONNX Runtime's own operators, of which ONNX knows no schema, that may have FLOAT16 wherever they may have FLOAT.
_CONTRIB_OP_TYPES = frozenset({"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "FusedMatMul", "Attention", "MultiHeadAttention"}) | {
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "RotaryEmbedding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retyping:
    """One change of type.

    Attributes:
        source, target: The types.
        convert: Gives the array of a constant in the target type; takes the constant and those readers that want it so.
        keeps: Whether a node stays as it is, with all inside it.
        changes_io: Whether inputs and outputs of the model change as well.
        needs_kernel: Whether a node stays as it is if ONNX Runtime's CPU provider could not run it in the target type.
    """

    source: ir.DataType
    target: ir.DataType
    convert: Callable[[ir.Value, list[tuple[ir.Node, int]]], NDArray[Any]]
    keeps: Callable[[ir.Node], bool] = lambda node: False
    changes_io: bool = True
    needs_kernel: bool = True


def retype(model: ir.Model, retyping: Retyping) -> bool:
    """Applies `retyping` to `model`, whose values must have their types; returns whether anything changed.

    Functions are inlined and Constant nodes made initialisers first if there is anything to do.

    Raises:
        CompileError: a sequence or optional would have to be cast.
    """
    if not any(value.dtype == retyping.source for value in _values(model.graph)):
        return False
    if model.functions:
        InlinePass()(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    work = _Work(retyping, model.opset_imports)
    work.decide(model.graph, keeps=False, changes_borders=retyping.changes_io)
    work.apply(model.graph)
    return bool(work.changed)


def has_type(value: ir.Value | None, data_type: ir.DataType) -> bool:
    """Whether `value` is a tensor, or a sequence of tensors, of that type."""
    return value is not None and value.dtype == data_type


@dataclass(slots=True)
class _Work:
    """First decides for every value and every use which of the two types it gets, then changes the graph.

    Attributes:
        changed: Values that get the new type.
        kept: Nodes that stay as they are.
        border: Of each graph, whether its inputs and outputs change.
        casts: Casts made, by value and whether to the new type.
    """

    retyping: Retyping
    opsets: dict[str, int]
    changed: set[ir.Value] = field(default_factory=set)
    kept: set[ir.Node] = field(default_factory=set)
    border: dict[ir.Graph, bool] = field(default_factory=dict)
    casts: dict[tuple[ir.Value, bool], ir.Value] = field(default_factory=dict)

    def decide(self, graph: ir.Graph, *, keeps: bool, changes_borders: bool, fixed_inputs: int = 0) -> None:
        self.border[graph] = changes_borders
        if changes_borders:
            self.changed.update(each for each in graph.inputs[fixed_inputs:] if has_type(each, self.retyping.source))
        for node in graph:
            is_known = all(each is None or each.type is not None for each in node.inputs)
            node_keeps = keeps or not is_known or self.retyping.keeps(node) or not self._can_run(node)
            if node_keeps:
                self.kept.add(node)
            else:
                self.changed.update(each for index, each in enumerate(node.outputs) if self._may_give(node, index))
            for inner in _subgraphs(node):
                # The body of a Loop starts with the iteration number and the condition, whose types are fixed.
                fixed = 2 if node.op_type == "Loop" else 0
                self.decide(inner, keeps=node_keeps, changes_borders=not node_keeps, fixed_inputs=fixed)

    def apply(self, graph: ir.Graph) -> None:
        for value in list(graph.initializers.values()):
            if has_type(value, self.retyping.source) and value not in self.changed:
                self._change_constant(graph, value)
        for value in list(graph.inputs):
            if value in self.changed and value.const_value is not None:  # an input's default
                value.const_value = ir.Tensor(self.retyping.convert(value, []), dtype=self.retyping.target, name=value.name)
            self._change(graph, value)
        for node in list(graph):
            for inner in _subgraphs(node):
                self.apply(inner)
            if not any(output in self.changed for output in node.outputs):
                for value in node.outputs:
                    self._change(graph, value)
                continue
            self._change_attributes(node)
            for value in node.outputs:
                self._change(graph, value)

    def _wants(self, node: ir.Node, index: int) -> bool:
        """Whether input `index`, of the source type, is to have the target type."""
        if (node.domain, node.op_type, index) in _KEPT_INPUTS:
            return False
        return node not in self.kept and _admits(self._formal(node, index, is_input=True), self.retyping.target, node)

    def _may_give(self, node: ir.Node, index: int) -> bool:
        output = node.outputs[index]
        return has_type(output, self.retyping.source) and _admits(self._formal(node, index, is_input=False), self.retyping.target, node)

    def _can_run(self, node: ir.Node) -> bool:
        if not self.retyping.needs_kernel or _subgraphs(node):
            return True
        changes = False
        types: list[list[ir.TypeProtocol | None]] = [[], []]
        for is_output, values in enumerate((node.inputs, node.outputs)):
            for index, value in enumerate(values):
                kind = None if value is None else value.type
                if has_type(value, self.retyping.source):
                    formal = self._formal(node, index, is_input=not is_output)
                    if kind is not None and _admits(formal, self.retyping.target, node):
                        kind, changes = self._retyped(kind), True
                types[is_output].append(kind)
        attributes = self._new_type_attribute(node) if node.outputs and self._may_give(node, 0) else {}
        return not changes or has_kernel(node, types[0], types[1], self.opsets.get(node.domain, 1), attributes)

    def _formal(self, node: ir.Node, index: int, *, is_input: bool) -> onnx.defs.OpSchema.FormalParameter | None:
        schema = _schema(node, self.opsets)
        if schema is None:
            return None
        formals = schema.inputs if is_input else schema.outputs
        return formals[min(index, len(formals) - 1)] if formals else None

    def _change(self, graph: ir.Graph, value: ir.Value) -> None:
        """Gives `value` its new type, and a Cast to readers that want the other."""
        if not has_type(value, self.retyping.source):
            return
        is_new = value in self.changed
        readers = [(use.node, use.idx) for use in value.uses()]
        if is_new and value.type is not None:
            value.type = self._retyped(value.type)
        for node, index in readers:
            if self._wants(node, index) != is_new:
                node.replace_input_with(index, self._cast(graph, value, not is_new))
        if value.is_graph_output() and self.border.get(graph, False) != is_new:
            self._cast_output(graph, value, not is_new)

    def _change_constant(self, graph: ir.Graph, value: ir.Value) -> None:
        readers = [(use.node, use.idx) for use in value.uses() if self._wants(use.node, use.idx)]
        is_output = value.is_graph_output() and self.border.get(graph, False)
        if not readers and not is_output:
            return
        tensor = ir.Tensor(self.retyping.convert(value, readers), dtype=self.retyping.target)
        self.changed.add(value)  # so that it is known that something changed; its uses are settled here
        if is_output or len(readers) == len(value.uses()):
            others = [use for use in value.uses() if (use.node, use.idx) not in readers]
            if others:  # an output that others want in the old type
                old = _constant(graph, f"{value.name}/{self.retyping.source.name}", value.const_value, value.type)
                for use in others:
                    use.node.replace_input_with(use.idx, old)
            tensor.name = value.name
            value.const_value, value.type = tensor, ir.TensorType(self.retyping.target)
            return
        tensor.name = f"{value.name}/{self.retyping.target.name}"
        new = _constant(graph, tensor.name, tensor, ir.TensorType(self.retyping.target))
        for node, index in readers:
            node.replace_input_with(index, new)

    def _change_attributes(self, node: ir.Node) -> None:
        for name, data_type in self._new_type_attribute(node).items():
            node.attributes[name] = ir.AttrInt64(name, int(data_type))
        if node.domain == "" and node.op_type in ("Constant", "ConstantOfShape"):
            attribute = node.attributes.get("value")
            held = ir.convenience.get_const_tensor(node.outputs[0]) if attribute is None else attribute.as_tensor()
            tensor = ir.tensor(np.zeros(1, self.retyping.source.numpy())) if held is None else held
            constant = ir.Value(name=node.outputs[0].name, const_value=tensor, type=ir.TensorType(self.retyping.source))
            converted = ir.Tensor(self.retyping.convert(constant, [(node, 0)]), dtype=self.retyping.target)
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", converted)

    def _new_type_attribute(self, node: ir.Node) -> dict[str, ir.DataType]:
        name = _TYPE_ATTRIBUTES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        return {} if name is None else {name: self.retyping.target}

    def _retyped(self, kind: ir.TypeProtocol) -> ir.TypeProtocol:
        if isinstance(kind, ir.SequenceType):
            return ir.SequenceType(self._retyped(kind.elem_type))
        if isinstance(kind, ir.OptionalType):
            return ir.OptionalType(self._retyped(kind.elem_type))
        return ir.TensorType(self.retyping.target)

    def _cast(self, graph: ir.Graph, value: ir.Value, to_target: bool) -> ir.Value:
        """`value` in the other type, cast once for all readers."""
        if (value, to_target) not in self.casts:
            node = self._cast_node(graph, value, to_target)
            node.outputs[0].name = f"{value.name}/{self._type(to_target).name}"
            self.casts[value, to_target] = node.outputs[0]
        return self.casts[value, to_target]

    def _cast_output(self, graph: ir.Graph, value: ir.Value, to_target: bool) -> None:
        name = value.name
        node = self._cast_node(graph, value, to_target)
        value.name = f"{name}/{self._type(not to_target).name}"
        node.outputs[0].name = name
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = node.outputs[0]

    def _cast_node(self, graph: ir.Graph, value: ir.Value, to_target: bool) -> ir.Node:
        if not isinstance(value.type, ir.TensorType):
            raise CompileError(
                f"'{value.name}' is no tensor ({value.type}) and cannot be cast to {self._type(to_target).name} for its readers"
            )
        node = ir.node("Cast", [value], {"to": int(self._type(to_target))}, name=f"{value.name}/to_{self._type(to_target).name}")
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(self._type(to_target)), value.shape
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, node)
        elif len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)
        return node

    def _type(self, is_target: bool) -> ir.DataType:
        return self.retyping.target if is_target else self.retyping.source


def _admits(formal: onnx.defs.OpSchema.FormalParameter | None, data_type: ir.DataType, node: ir.Node) -> bool:
    if formal is None:
        return node.domain == "com.microsoft" and node.op_type in _CONTRIB_OP_TYPES and data_type == ir.DataType.FLOAT16
    return f"tensor({data_type.name.lower()})" in formal.types


def _schema(node: ir.Node, opsets: dict[str, int]) -> onnx.defs.OpSchema | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None


def _constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol | None, kind: ir.TypeProtocol | None) -> ir.Value:
    value = ir.Value(name=name, const_value=tensor, type=kind, shape=None if tensor is None else ir.Shape(tensor.shape.numpy()))
    graph.register_initializer(value)
    return value


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        yield from node.outputs
        for inner in _subgraphs(node):
            yield from inner.inputs
            yield from inner.initializers.values()


#: Elements of which a sum of values around 16, an ordinary activation before normalisation, leaves the range.
LONG_SUM = 4096

_SQUARING = frozenset({"ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "LpNormalization", "GlobalLpPool"})
_SUMS = frozenset({"ReduceSum", "ReduceMean", "CumSum"})
#: Through these a large value is passed on; the chain ends, with the operator kept as well, where the range is left no more.
_PASSING = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "Add", "Sub", "Mul", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Identity"})
_ENDING = frozenset({"Sqrt", "Log", "Reciprocal", "Div", "Tanh", "Sigmoid", "Erf", "Clip", "Softmax"})
#: Nodes that a large value is followed through; without a bound, additions would lead along a network's whole residual stream.
_LONGEST_CHAIN = 8


def overflow_prone(model: ir.Model) -> dict[ir.Node, str]:
    """The nodes of `model`, sub-graphs included, that belong to such a pattern, each with what starts it."""
    found: dict[ir.Node, str] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain not in ("", "ai.onnx"):
            continue
        if _is_power(node) or node.op_type == "Exp":
            for each in _chain(node):
                found.setdefault(each, f"{node.op_type} '{node.name}'")
        elif node.op_type in _SQUARING or (node.op_type in _SUMS and _summed(node) > LONG_SUM) or _is_masked_softmax(node):
            found.setdefault(node, f"{node.op_type} '{node.name}'")
    return found


def _chain(start: ir.Node) -> Iterator[ir.Node]:
    """`start` and the nodes after it that see its large values."""
    waiting, seen = [(start, 1)], {start}
    while waiting:
        node, length = waiting.pop(0)
        yield node
        for use in node.outputs[0].uses():
            reader = use.node
            if reader in seen or reader.domain not in ("", "ai.onnx"):
                continue
            seen.add(reader)
            if reader.op_type in _PASSING and length < _LONGEST_CHAIN:
                waiting.append((reader, length + 1))
            elif reader.op_type in _ENDING:
                yield reader


def _is_power(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type != "Pow" or node.inputs[1] is None:
        return False
    exponent = ir.convenience.get_const_tensor(node.inputs[1])
    return exponent is not None and bool(np.any(np.abs(exponent.numpy()) >= 2))


def _summed(node: ir.Node) -> int:
    """How many elements one element of the output sums up; 0 where a size is not known."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or not source.shape.is_static():
        return 0
    sizes = [int(size) for size in source.shape.numpy()]
    if node.op_type == "CumSum":
        return max(sizes, default=0)
    if result.shape is None or not result.shape.is_static():
        return 0
    return math.prod(sizes) // max(1, math.prod(result.shape.numpy()))


def _is_masked_softmax(node: ir.Node) -> bool:
    if node.op_type not in ("Softmax", "LogSoftmax") or node.inputs[0] is None:
        return False
    waiting, steps = [node.inputs[0].producer()], 0
    while waiting and steps < 16:  # a mask is made a few nodes before the softmax
        maker = waiting.pop()
        steps += 1
        if maker is None or maker.op_type not in ("Add", "Sub", "Mul", "Where", "Unsqueeze", "Expand", "Cast"):
            continue
        for value in maker.inputs:
            constant = None if value is None else ir.convenience.get_const_tensor(value)
            if constant is not None and constant.dtype.is_floating_point() and np.any(np.abs(constant.numpy()) > HALF_LIMIT):
                return True
            waiting.append(None if value is None else value.producer())
    return False
