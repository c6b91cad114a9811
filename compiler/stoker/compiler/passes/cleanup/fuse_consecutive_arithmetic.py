"""`fuse_consecutive_arithmetic`: constants that follow each other are computed beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, is_op, new_constant, only_use, replace_node
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_consecutive_arithmetic")
class FuseConsecutiveArithmetic(NodePass):
    """Makes one node of two additions (or subtractions) or two multiplications (or divisions) of constants in a row.

    Floating-point results may differ in the last bit, since there is one rounding less. Left alone: divisions of integers; constants
    whose combination would overflow, vanish or be larger than both; values between that others read.
    """

    def visit(self, node: ir.Node) -> bool:
        second = _step(node)
        inner = second.value.producer() if second is not None else None
        if second is None or inner is None or only_use(second.value) is not node:
            return False
        first = _step(inner)
        if first is None or first.is_sum != second.is_sum:
            return False
        combined = _combine(first, second)
        if combined is None:
            return False
        constant = new_constant(node, combined, "constant")
        replace_node(node, "Add" if first.is_sum else "Mul", [first.value, constant])
        graph = inner.graph
        assert graph is not None, "the inner node was only read by the replaced one"
        graph.remove(inner, safe=True)
        return True


@dataclass(frozen=True, slots=True)
class _Step:
    """x + constant, or x * constant; `is_inverse` for x - constant and x / constant."""

    value: ir.Value
    constant: NDArray[Any]
    is_sum: bool
    is_inverse: bool


def _step(node: ir.Node) -> _Step | None:
    if not is_op(node, "Add", "Sub", "Mul", "Div"):
        return None
    is_sum, is_inverse = node.op_type in ("Add", "Sub"), node.op_type in ("Sub", "Div")
    left, right = node.inputs
    for value, other in ((left, right), (right, left)):
        constant = constant_of(other)
        if value is not None and constant is not None and constant_of(value) is None:
            if node.op_type == "Div" and constant.dtype.kind in "iu":
                return None
            return _Step(value, constant, is_sum, is_inverse)
        if is_inverse:
            break
    return None


def _combine(first: _Step, second: _Step) -> NDArray[Any] | None:
    """The one constant of both steps, in their type; None where it would not do."""
    kind = first.constant.dtype
    if kind != second.constant.dtype:
        return None
    exact = np.dtype(np.float64) if kind.kind not in "iu" else kind
    with np.errstate(all="ignore"):
        one, two = first.constant.astype(exact), second.constant.astype(exact)
        if first.is_sum:
            result = (-one if first.is_inverse else one) + (-two if second.is_inverse else two)
        else:
            result = (1 / one if first.is_inverse else one) * (1 / two if second.is_inverse else two)
        rounded = np.asarray(result).astype(kind)
    if rounded.size > max(first.constant.size, second.constant.size):
        return None
    if exact == np.float64:
        wide = rounded.astype(np.float64)
        if not np.isfinite(wide).all() or (not first.is_sum and (np.abs(wide) < _smallest_normal(kind)).any()):
            return None
    return rounded


def _smallest_normal(kind: np.dtype[Any]) -> float:
    """Below it a product has lost digits that the two steps kept."""
    return float(_float_form(kind).smallest_normal)


# ml_dtypes' own, because it knows bfloat16 too; it comes without types.
_float_form: Callable[[Any], Any] = ml_dtypes.finfo
