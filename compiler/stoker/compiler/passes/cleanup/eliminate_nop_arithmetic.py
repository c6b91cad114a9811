"""`eliminate_nop_arithmetic`: adding nothing, multiplying by one."""

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import bypass, constant_of, is_op, rank_of
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_arithmetic")
class EliminateNopArithmetic(NodePass):
    """Removes x + 0, x - 0, x * 1, x / 1, x ** 1, x or False and x and True, where the constant does not broadcast x to a larger shape.

    x + 0 turns -0.0 into 0.0, which x does not; it stays where a division or a power reads it, where the two zeros differ.
    """

    def visit(self, node: ir.Node) -> bool:
        neutral = _NEUTRAL.get(node.op_type)
        if neutral is None or not is_op(node, node.op_type) or len(node.inputs) != 2:
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
    """Only +0.0 added or -0.0 subtracted changes a zero, and only -0.0."""
    if constant.dtype.kind in "iub" or node.op_type not in ("Add", "Sub"):
        return False
    has_sign = constant.view(f"u{constant.dtype.itemsize}") != 0
    if bool((has_sign if node.op_type == "Add" else ~has_sign).all()):
        return False
    return any(reader.op_type in _TELLS_ZEROS_APART for reader in node.outputs[0].consumers())
