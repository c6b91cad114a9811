"""Lowering: a converted model becomes the graph whose arithmetic the simulated device does.

A device that stores FLOAT16 rounds what it stores. ONNX Runtime's CPU kernels do not round between FLOAT16 operators, so the lowered graph
computes in FLOAT and says each rounding: a Cast to FLOAT16 and one back. Of a FLOAT16 tensor `t` of the converted model it has

    t        what the device stores, FLOAT16: inputs, outputs, weights and whatever was rounded
    t.float  the same value for FLOAT operators to read
    t.exact  what an operator gave before it was rounded

What is modelled: one rounding, to nearest even, where an operator writes its FLOAT16 result. Sums inside an operator are accumulated in
FLOAT, also where `partials_type` is half; that option changes memory and time only. Inside Softmax, normalisations and the like nothing is
rounded. Operators that only move or choose elements (`moving.MOVING`) need no rounding. What is stored in eight bits is lowered
by `float8`. Weights are stored in the width of the device and widened when the graph is loaded.
"""

import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from stoker.compiler.lowering.float8 import lower_float8
from stoker.compiler.lowering.tensor_facts import MOVING
from stoker.compiler.lowering.typed_graph import FreeNames
from stoker.compiler.precision.representation import is_float8_cast

#: The newest ONNX IR that serving installs must read; no lowered graph needs anything newer.
LOWERED_IR_VERSION = 10

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
#: Operators whose FLOAT16 output is FLOAT16 in the lowered graph too: they write what is stored.
_WRITERS = frozenset({"Cast", "Constant", "ConstantOfShape"})
#: Attributes that name an output's element type.
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype")
#: Before these opsets the operator took as attributes, in FLOAT, the values that it may give: no half need be equal to them.
_MOVING_FROM = {"Clip": 11, "Pad": 11}


def lower(model: ir.Model) -> bytes:
    """The lowered graph of `model`, which must be typed (`typed_graph`), serialised. `model` is changed and not to be used afterwards.

    Inputs and outputs keep names, types and shapes.
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
    """ONNX Runtime refuses a graph in which two nodes have one name, as the casts of two passes may."""
    seen: set[str] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.name and node.name in seen:
            node.name = names.new(node.name)
        seen.add(node.name or "")


def serialise(model: ir.Model) -> bytes:
    """`model` as bytes that are the same whenever it is the same."""
    proto = ir.to_proto(model)
    proto.doc_string = ""
    proto.producer_name, proto.producer_version = "stoker", ""
    for node in proto.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    return proto.SerializeToString(deterministic=True)


class _Lowering:
    """Lowers one graph in place; graphs within it are lowered by themselves, and read the same values."""

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
                value.dtype = _FLOAT  # what If, Loop and Scan hand in is FLOAT already
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
        """Whether what `node` gives is representable because what it got was, or is not stored at all."""
        if node in self._float8_casts:
            return True
        if node.domain or node.op_type not in MOVING or self._opset < _MOVING_FROM.get(node.op_type, 1):
            return False
        reduction = node.attributes.get("reduction")
        return reduction is None or reduction.as_string() in ("none", "max", "min")

    def _widen(self, stored: ir.Value, *, before: ir.Node | None = None, after: ir.Node | None = None) -> None:
        """Lets whoever reads `stored` read it as FLOAT."""
        if not stored.uses():
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
        """Lets all readers but `keep` read `new`; results of the main graph stay, those of graphs within it change too."""
        for use in tuple(old.uses()):
            if use.node not in keep:
                use.node.replace_input_with(use.idx, new)
        if not self._is_main:
            self._show(old, new)

    def _show(self, old: ir.Value, new: ir.Value) -> None:
        """Makes `new` the graph's output where `old` was."""
        for at, output in enumerate(self._graph.outputs):
            if output is old:
                self._graph.outputs[at] = new


def _make_cast_explicit(node: ir.Node) -> None:
    """CastLike follows a type that lowering changes; attributes that name FLOAT16 would make operators compute in it."""
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
