"""`replace_div_with_mul`: dividing by a constant is multiplying by its reciprocal."""

import numpy as np
import onnx_ir as ir

from compiler.passes.edit import constant_of
from compiler.passes.matching.constants import is_constant
from compiler.passes.matching.each_node import rewrite_each
from compiler.passes.matching.editing import GraphEditor
from compiler.passes.pass_ import Pass
from compiler.passes.registry import register
from compiler.passes.replacement.rewriting import Rewriting


@register("replace_div_with_mul")
class ReplaceDivWithMul(Pass):
    """Replaces a Div of floats by a constant with a Mul: exact for powers of two, else the reciprocal is rounded once more (1 ulp).

    Left alone where a divisor is zero, or its reciprocal would overflow or be subnormal.
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
    writing = Rewriting(editor, node)
    reciprocal = writing.array(exact.astype(array.dtype), "reciprocal")
    return writing.finish(writing.op("Mul", value, reciprocal, shape=node.outputs[0].shape))
