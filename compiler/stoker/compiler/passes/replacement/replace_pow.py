"""`replace_pow`: common powers are products, roots and reciprocals."""

import onnx_ir as ir

from stoker.compiler.passes.edit import rank_of
from stoker.compiler.passes.matching.constants import scalar_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_WHOLE = (1.0, 2.0, 3.0, 4.0)
_OTHERS = (0.5, -0.5, -1.0)


@register("replace_pow")
class ReplacePow(Pass):
    """Replaces Pow with a constant exponent of 1, 2, 3, 4, 1/2, -1/2 or -1 by Mul, Sqrt and Reciprocal; integers with 1 to 4 only.

    Tolerance is rounding. Minus infinity to the power of 1/2 becomes NaN, where Pow gives infinity.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Pow")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, exponent = node.inputs[0], scalar_of(node.inputs[1])
    if x is None or x.dtype is None or exponent is None or (rank_of(node.inputs[1]) or 0) > (rank_of(x) or 0):
        return False
    if exponent not in _WHOLE and not (exponent in _OTHERS and x.dtype.is_floating_point()):
        return False
    writing = Rewriting(editor, node)
    if exponent == 1:
        return writing.finish(x)
    if exponent in _OTHERS:
        root = x if exponent == -1 else writing.op("Sqrt", x, shape=x.shape)
        return writing.finish(root if exponent > 0 else writing.op("Reciprocal", root, shape=x.shape))
    square = writing.op("Mul", x, x, shape=x.shape)
    if exponent == 2:
        return writing.finish(square)
    return writing.finish(writing.op("Mul", square, x if exponent == 3 else square, shape=x.shape))
