"""`replace_div_with_mul`: dividing by a constant is multiplying by its reciprocal."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op
from stoker.compiler.passes.matching.constants import is_constant
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

#: What makes a last bit count: 41 / 41 is 1, while 41 * (1 / 41) may be less, and its floor 0.
_STEPS = ("Floor", "Ceil", "Round", "Mod", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


@register("replace_div_with_mul")
class ReplaceDivWithMul(Pass):
    """Replaces a Div of floats by a constant with a Mul: exact for powers of two, else the reciprocal is rounded once more (1 ulp).

    Left alone where a divisor is zero, or its reciprocal would overflow or be subnormal; and, unless it is exact, where the quotient is
    rounded, compared or made an integer.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Div")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    value, divisor = node.inputs
    array = constant_of(divisor)
    if value is None or array is None or array.dtype.kind != "f" or is_constant(value) or not np.all(array):
        return False
    limits = np.finfo(array.dtype)
    exact = 1.0 / array.astype(np.float64)
    magnitude = np.abs(exact)
    if not np.all((magnitude >= float(limits.tiny)) & (magnitude <= float(limits.max))):
        return False
    if np.any(np.frexp(magnitude)[0] != 0.5) and any(_makes_steps(use.node) for use in node.outputs[0].uses()):
        return False
    writing = Rewriting(editor, node)
    reciprocal = writing.array(exact.astype(array.dtype), "reciprocal")
    return writing.finish(writing.op("Mul", value, reciprocal, shape=node.outputs[0].shape))


def _makes_steps(node: ir.Node) -> bool:
    """Whether a small difference of its input can be a large one of its output."""
    if is_op(node, "Cast"):
        return not ir.DataType(node.attributes["to"].as_int()).is_floating_point()
    return is_op(node, *_STEPS)
