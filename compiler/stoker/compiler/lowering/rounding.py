"""Lowering: a converted model becomes the graph whose arithmetic the simulated device does.

A device that stores FLOAT16 rounds what it stores. ONNX Runtime's CPU kernels do not round between FLOAT16 operators, so the lowered graph
computes in FLOAT and says each rounding: a Cast to FLOAT16 and one back. Of a FLOAT16 tensor `t` of the converted model it has

    t        what the device stores, FLOAT16: inputs, outputs, weights and whatever was rounded
    t.float  the same value for FLOAT operators to read
    t.exact  what an operator gave before it was rounded

What is modelled: one rounding, to nearest even, where an operator writes its FLOAT16 result. Sums inside an operator are accumulated in
FLOAT; a device may round them too (`stoker.backends.ipu.compile.half_partials`). Inside Softmax, normalisations and the like nothing is
rounded. Operators that only move or choose elements (`MOVING`) need no rounding. What is stored in eight bits is lowered by
`lower_float8`. Weights are stored in the width of the device and widened when the graph is loaded.

Eight-bit floats in the lowered graph. Converted models have QuantizeLinear and DequantizeLinear there
(`stoker.compiler.precision.representation`). Two things are changed:

* ONNX Runtime takes a DequantizeLinear before a MatMul for the sign of an integer model and rewrites both. `code x 2^scale` is lowered to a
Cast and a Mul, which it leaves alone, and computes once where the codes are a weight. Both are exact. * A QuantizeLinear that saturates
gives the largest value for infinity, the device NaN.
"""

import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from stoker.compiler.lowering.typed_graph import MOVING, FreeNames
from stoker.compiler.precision.representation import is_float8_cast

_FLOAT8 = (ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ)


def lower_float8(model: ir.Model, names: FreeNames) -> None:
    """Lowers the quantisation nodes of 8-bit floats in `model`; all other values must be lowered already."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if _saturates(node):
            _make_infinity_nan(node, names)
        elif _decodes(node):
            _cast_and_scale(node, names)


def _saturates(node: ir.Node) -> bool:
    saturates = node.attributes.get("saturate")
    return node.op_type == "QuantizeLinear" and node.outputs[0].dtype in _FLOAT8 and (saturates is None or saturates.as_int() != 0)


def _make_infinity_nan(node: ir.Node, names: FreeNames) -> None:
    """Makes a QuantizeLinear read `x - (x - x)`: NaN if x is infinite, else x."""
    value, graph = node.inputs[0], node.graph
    assert value is not None
    assert graph is not None
    zero = _new_node("Sub", [value, value], f"{node.outputs[0].name}/zero_or_nan", value.shape, names)
    result = _new_node("Sub", [value, zero.outputs[0]], f"{node.outputs[0].name}/nan_for_infinity", value.shape, names)
    graph.insert_before(node, [zero, result])
    node.replace_input_with(0, result.outputs[0])


def _decodes(node: ir.Node) -> bool:
    """Returns whether `node` decodes an 8-bit float with a single scale; the zero point of such types is 0."""
    if node.op_type != "DequantizeLinear" or node.inputs[0] is None or node.inputs[0].dtype not in _FLOAT8:
        return False
    scale = node.inputs[1]
    return scale is not None and scale.shape is not None and len(scale.shape) == 0


def _cast_and_scale(node: ir.Node, names: FreeNames) -> None:
    codes, graph, decoded = node.inputs[0], node.graph, node.outputs[0]
    assert codes is not None
    assert graph is not None
    cast = _new_node("Cast", [codes], f"{decoded.name}/codes", decoded.shape, names, to=_FLOAT.value)
    scaled = _new_node("Mul", [cast.outputs[0], node.inputs[1]], f"{decoded.name}/scaled", decoded.shape, names)
    graph.insert_before(node, [cast, scaled])
    ir.convenience.replace_all_uses_with(decoded, scaled.outputs[0], replace_graph_outputs=True)
    name = decoded.name
    graph.remove(node, safe=True)
    scaled.outputs[0].name = name


def _new_node(
    op_type: str, inputs: list[ir.Value | None], name: str, shape: ir.Shape | None, names: FreeNames, **attributes: int
) -> ir.Node:
    node = ir.node(op_type, inputs, attributes, name=names.new(name))
    node.outputs[0].name, node.outputs[0].dtype, node.outputs[0].shape = names.new(f"{name}/value"), _FLOAT, shape
    return node


#: The newest ONNX IR version that all serving installations read; lowered graphs need nothing newer.
LOWERED_IR_VERSION = 10

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
#: Operators whose FLOAT16 output stays FLOAT16 in the lowered graph: they write the stored value.
_WRITERS = frozenset({"Cast", "Constant", "ConstantOfShape"})
#: Attributes that name an output's element type.
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype")
#: Before these opsets, FLOAT attributes held values that the operator may output; these need not be representable in FLOAT16.
_MOVING_FROM = {"Clip": 11, "Pad": 11}


def lower(model: ir.Model) -> bytes:
    """Lowers `model`, which must be typed (`typed_graph`), and returns it serialised. `model` is changed and must not be used afterwards.

    Inputs and outputs keep their names, types and shapes.
    """
    make_roundings_explicit(model)
    return serialise(model)


def make_roundings_explicit(model: ir.Model) -> None:
    """Lowers `model`, which must be typed (`typed_graph`), in place; inputs and outputs keep names, types and shapes."""
    float8_casts = {node for node in ir.traversal.RecursiveGraphIterator(model.graph) if is_float8_cast(node)}
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        _make_cast_explicit(node)
    names = FreeNames(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        _Lowering(graph, names, float8_casts, opset=model.opset_imports.get("", 1), is_main=graph is model.graph).run()
    lower_float8(model, names)
    ir_passes.RemoveUnusedNodesPass()(model)
    _name_nodes_apart(model, names)
    model.ir_version = LOWERED_IR_VERSION
    model.metadata_props.clear()


def _name_nodes_apart(model: ir.Model, names: FreeNames) -> None:
    """Renames nodes that share a name, which ONNX Runtime rejects. The casts of two passes may have the same name."""
    seen: set[str] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.name and node.name in seen:
            node.name = names.new(node.name)
        seen.add(node.name or "")


def serialise(model: ir.Model) -> bytes:
    """Serialises `model` deterministically: equal models give equal bytes."""
    proto = ir.to_proto(model)
    proto.doc_string = ""
    proto.producer_name, proto.producer_version = "stoker", ""
    for node in proto.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    return proto.SerializeToString(deterministic=True)


class _Lowering:
    """Lowers one graph in place. Sub-graphs are lowered separately and read the same values."""

    def __init__(self, graph: ir.Graph, names: FreeNames, float8_casts: set[ir.Node], *, opset: int, is_main: bool) -> None:
        self._graph = graph
        self._names = names
        self._float8_casts = float8_casts
        self._opset = opset
        self._is_main = is_main

    def run(self) -> None:
        nodes = list(self._graph)
        first = nodes[0] if nodes else None
        for value in (*self._graph.inputs, *self._graph.initializers.values()):
            if value.dtype != _HALF:
                continue
            if not self._is_main and value.is_graph_input():
                value.dtype = _FLOAT  # If, Loop and Scan pass FLOAT values
            else:
                self._widen(value, before=first)
        for node in nodes:
            for output in node.outputs:
                if output.dtype == _HALF:
                    self._lower_output(node, output)

    def _lower_output(self, node: ir.Node, output: ir.Value) -> None:
        if node.op_type in _WRITERS and not node.domain:
            self._widen(output, after=node)
            return
        stored = output.name or ""
        output.dtype = _FLOAT
        is_result = self._is_main and output.is_graph_output()
        if self._is_exact(node):
            output.name = self._names.new(f"{stored}.float")
            if is_result:
                self._show(output, self._cast(output, _HALF, stored, after=node))
            return
        output.name = self._names.new(f"{stored}.exact")
        half = self._cast(output, _HALF, stored, after=node)
        caster = half.producer()
        assert caster is not None
        if is_result:
            self._show(output, half)
        wide = self._cast(half, _FLOAT, self._names.new(f"{stored}.float"), after=caster)
        self._replace(output, wide, {caster})

    def _is_exact(self, node: ir.Node) -> bool:
        """Returns whether the output of `node` needs no rounding: it equals representable inputs, or the device does not store it."""
        if node in self._float8_casts:
            return True
        if node.domain or node.op_type not in MOVING or self._opset < _MOVING_FROM.get(node.op_type, 1):
            return False
        reduction = node.attributes.get("reduction")
        return reduction is None or reduction.as_string() in ("none", "max", "min")

    def _widen(self, stored: ir.Value, *, before: ir.Node | None = None, after: ir.Node | None = None) -> None:
        """Makes all readers of `stored` read it as FLOAT; an output of a sub-graph is read outside it."""
        if not stored.uses() and (self._is_main or not stored.is_graph_output()):
            return
        wide = self._cast(stored, _FLOAT, self._names.new(f"{stored.name}.float"), before=before, after=after)
        caster = wide.producer()
        assert caster is not None
        self._replace(stored, wide, {caster})

    def _cast(
        self, value: ir.Value, to: ir.DataType, name: str, *, before: ir.Node | None = None, after: ir.Node | None = None
    ) -> ir.Value:
        node = ir.node("Cast", [value], {"to": to.value}, name=self._names.new(f"{name}/cast"))
        output = node.outputs[0]
        output.name, output.dtype, output.shape = name, to, value.shape
        if after is not None:
            self._graph.insert_after(after, node)
        elif before is not None:
            self._graph.insert_before(before, node)
        else:
            self._graph.append(node)
        return output

    def _replace(self, old: ir.Value, new: ir.Value, keep: set[ir.Node]) -> None:
        """Makes all readers except `keep` read `new`. Outputs of sub-graphs are replaced too; outputs of the main graph stay."""
        for use in tuple(old.uses()):
            if use.node not in keep:
                use.node.replace_input_with(use.idx, new)
        if not self._is_main:
            self._show(old, new)

    def _show(self, old: ir.Value, new: ir.Value) -> None:
        """Replaces output `old` of the graph by `new`."""
        for at, output in enumerate(self._graph.outputs):
            if output is old:
                self._graph.outputs[at] = new


def _make_cast_explicit(node: ir.Node) -> None:
    """Replaces CastLike, whose target type lowering changes, by Cast, and FLOAT16 in type attributes by FLOAT."""
    if node.domain:
        return
    if node.op_type == "CastLike":
        like = node.inputs[1]
        assert like is not None
        assert like.dtype is not None
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", like.dtype.value)
        node.resize_inputs(1)
    if node.op_type in _WRITERS:
        return
    for key in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(key)
        if attribute is not None and attribute.as_int() == _HALF.value:
            node.attributes[key] = ir.AttrInt64(key, _FLOAT.value)
