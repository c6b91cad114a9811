"""Eight-bit floats in the lowered graph.

Converted models have QuantizeLinear and DequantizeLinear there (`stoker.compiler.precision.representation`). Two things are changed:

* ONNX Runtime takes a DequantizeLinear before a MatMul for the sign of an integer model and rewrites both. `code x 2^scale` is lowered to a
  Cast and a Mul, which it leaves alone, and computes once where the codes are a weight. Both are exact.
* A QuantizeLinear that saturates gives the largest value for infinity, the device NaN.
"""

import onnx_ir as ir

from stoker.compiler.lowering.typed_graph import FreeNames

_FLOAT = ir.DataType.FLOAT
_FLOAT8 = (ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ)


def lower_float8(model: ir.Model, names: FreeNames) -> None:
    """Lowers what quantises to and from eight-bit floats in `model`, whose other values are lowered already."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if _saturates(node):
            _make_infinity_nan(node, names)
        elif _decodes(node):
            _cast_and_scale(node, names)


def _saturates(node: ir.Node) -> bool:
    saturates = node.attributes.get("saturate")
    return node.op_type == "QuantizeLinear" and node.outputs[0].dtype in _FLOAT8 and (saturates is None or saturates.as_int() != 0)


def _make_infinity_nan(node: ir.Node, names: FreeNames) -> None:
    """Lets a QuantizeLinear read `x - (x - x)`: NaN for an infinite x, else x."""
    value, graph = node.inputs[0], node.graph
    assert value is not None
    assert graph is not None
    zero = _new_node("Sub", [value, value], f"{node.outputs[0].name}/zero_or_nan", value.shape, names)
    result = _new_node("Sub", [value, zero.outputs[0]], f"{node.outputs[0].name}/nan_for_infinity", value.shape, names)
    graph.insert_before(node, [zero, result])
    node.replace_input_with(0, result.outputs[0])


def _decodes(node: ir.Node) -> bool:
    """Whether `node` decodes an eight-bit float by one scale; the zero point of such types is 0."""
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
