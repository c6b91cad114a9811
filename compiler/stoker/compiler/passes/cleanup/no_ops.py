"""Passes that remove nodes without effect."""

from math import prod
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import NameFixPass

from stoker.compiler.marks import REMAP
from stoker.compiler.passes.edit import (
    bypass,
    constant_ints,
    constant_of,
    input_at,
    is_op,
    new_constant,
    rank_of,
    remove,
    static_shape,
    substitute,
)
from stoker.compiler.passes.registry import NodePass, node_pass, register


@node_pass("Identity")
def eliminate_identity(node: ir.Node) -> bool:
    """Removes Identity nodes, except those that give an input, an initialiser or a second output its name as a graph output.

    Identity nodes that mark a layout remap (`auto_insert_remap`) stay too.
    """
    return REMAP not in node.metadata_props and bypass(node)


@node_pass("Add", "Sub", "Mul", "Div", "Pow", "Or", "And")
def eliminate_nop_arithmetic(node: ir.Node) -> bool:
    """Removes x + 0, x - 0, x * 1, x / 1, x ** 1, x or False, and x and True, if the constant does not broadcast x to a larger shape.

    x + 0 turns -0.0 into 0.0. It stays if a division or a power reads it, because these distinguish the two zeros.
    """
    neutral = _NEUTRAL[node.op_type]
    if len(node.inputs) != 2:
        return False
    for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        constant = constant_of(other)
        if value is not None and constant is not None and _is_all(constant, neutral) and _keeps_shape(constant, value):
            return not _zero_sign_matters(node, constant) and bypass(node, value)
        if node.op_type not in _COMMUTATIVE:
            break
    return False


_NEUTRAL: dict[str, int] = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "Or": 0, "And": 1}
_COMMUTATIVE = frozenset({"Add", "Mul", "Or", "And"})
_TELLS_ZEROS_APART = frozenset({"Div", "Reciprocal", "Pow"})


def _is_all(constant: NDArray[Any], number: int) -> bool:
    return constant.size > 0 and bool((constant == number).all())


def _keeps_shape(constant: NDArray[Any], value: ir.Value) -> bool:
    rank = rank_of(value)
    if constant.ndim == 0:
        return True
    if value.shape is None or rank is None or constant.ndim > rank:
        return False
    tail = list(value.shape)[rank - constant.ndim :]
    return all(size in (1, known) for size, known in zip(constant.shape, tail, strict=True))


def _zero_sign_matters(node: ir.Node, constant: NDArray[Any]) -> bool:
    """Returns whether a reader distinguishes zeros and the node changes one: adding +0.0 or subtracting -0.0 turns -0.0 into +0.0."""
    if constant.dtype.kind in "iub" or node.op_type not in ("Add", "Sub"):
        return False
    has_sign = constant.view(f"u{constant.dtype.itemsize}") != 0
    if bool((has_sign if node.op_type == "Add" else ~has_sign).all()):
        return False
    return any(reader.op_type in _TELLS_ZEROS_APART for reader in node.outputs[0].consumers())


@node_pass("Cast", "CastLike")
def eliminate_nop_cast(node: ir.Node) -> bool:
    """Removes Cast and CastLike nodes whose input already has the target element type."""
    source = node.inputs[0] if node.inputs else None
    if source is None or source.dtype is None:
        return False
    if node.op_type == "Cast":
        wanted = node.attributes.get_int("to", 0)
    elif node.inputs[1] is not None:
        wanted = int(node.inputs[1].dtype or 0)
    else:
        return False
    return int(source.dtype) == wanted and bypass(node)


@node_pass("Expand")
def eliminate_nop_expand(node: ir.Node) -> bool:
    """Removes Expand nodes that add no dimension and enlarge none."""
    source, target = node.inputs[0], constant_ints(input_at(node, 1))
    shape = static_shape(source)
    if shape is not None and shape == static_shape(node.outputs[0]):
        return bypass(node)
    rank = rank_of(source)
    if source is None or source.shape is None or rank is None or target is None or len(target) > rank:
        return False
    tail = list(source.shape)[rank - len(target) :]
    return all(wanted in (1, size) for wanted, size in zip(target, tail, strict=True)) and bypass(node)


@node_pass("Flatten")
def eliminate_nop_flatten(node: ir.Node) -> bool:
    """Removes Flatten nodes that keep the shape of a matrix."""
    if rank_of(node.inputs[0]) != 2:
        return False
    axis = node.attributes.get_int("axis", 1)
    if axis in (1, -1):
        return bypass(node)
    shape = static_shape(node.inputs[0])
    at = axis + 2 if axis < 0 else axis
    return shape is not None and (prod(shape[:at]), prod(shape[at:])) == shape and bypass(node)


@register("eliminate_nop_if")
class EliminateNopIf(NodePass):
    """Replaces an If with a constant condition by the selected branch."""

    def run(self, model: ir.Model) -> bool:
        if not super().run(model):
            return False
        NameFixPass()(model)  # names of the branch may be in use in the surrounding graph
        return True

    def visit(self, node: ir.Node) -> bool:
        condition = constant_of(node.inputs[0]) if is_op(node, "If") else None
        graph = node.graph
        if condition is None or graph is None or condition.size != 1:
            return False
        branch = node.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"].as_graph()
        results = list(branch.outputs)
        branch.outputs.clear()
        constants = list(branch.initializers.values())
        branch.initializers.clear()
        for value in constants:
            tensor = value.const_value
            assert tensor is not None, "an initialiser has a value"
            moved = new_constant(node, tensor, str(value.name))
            value.replace_all_uses_with(moved)
            results = [moved if result is value else result for result in results]
        nodes = list(branch)
        branch.remove(nodes)
        graph.insert_before(node, nodes)
        for old, new in zip(node.outputs, results, strict=True):
            substitute(old, new)
        remove(node)
        return True


@node_pass("Pad")
def eliminate_nop_pad(node: ir.Node) -> bool:
    """Removes Pad nodes whose pads are all 0, for every mode and value."""
    pads = constant_ints(input_at(node, 1))
    return pads is not None and not any(pads) and bypass(node)


@node_pass("Reshape")
def eliminate_nop_reshape(node: ir.Node) -> bool:
    """Removes Reshape nodes that keep the shape. For variable dimensions, the target must be 0 or a single -1."""
    source = node.inputs[0]
    shape = static_shape(source)
    if shape is not None and shape == static_shape(node.outputs[0]):
        return bypass(node)
    target = constant_ints(input_at(node, 1))
    if source is None or source.shape is None or target is None or len(target) != len(source.shape):
        return False
    zero_keeps = not node.attributes.get_int("allowzero", 0)
    kept = [wanted == size or (wanted == 0 and zero_keeps) for wanted, size in zip(target, source.shape, strict=True)]
    left = [wanted for wanted, is_kept in zip(target, kept, strict=True) if not is_kept]
    return left in ([], [-1]) and bypass(node)


@node_pass("Transpose")
def eliminate_nop_transpose(node: ir.Node) -> bool:
    """Removes Transpose nodes that keep the order of dimensions. Without `perm` the order is reversed, which has no effect up to rank 1."""
    order = node.attributes.get("perm")
    if order is None:
        rank = rank_of(node.inputs[0])
        return rank is not None and rank <= 1 and bypass(node)
    return not order.is_ref() and list(order.as_ints()) == sorted(order.as_ints()) and bypass(node)
