"""`replace_where_mask`: scores that a softmax is not to see are lowered by a sum, not replaced by a choice."""

from typing import Final

import onnx_ir as ir

from stoker.compiler.passes.matching.constants import scalar_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import reader_of
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

#: What is at most this becomes exp(...) = 0 in a softmax, in FP32 as well.
_MASKED: Final = -1000.0
#: What is added to a masked score: finite in FP16 with any score below 5e4, and as transformers mask.
_LOWEST: Final = -10000.0


@register("replace_where_mask")
class ReplaceWhereMask(Pass):
    """Replaces Where, which puts a very low number in place of masked scores in front of a Softmax, by Add of a mask made of 0 and that
    number (at least -10000). The mask is as small as the condition is, and is made once for all that share it after clean-up.

    Exact where each row keeps a score that is not masked, and scores differ by less than 5000. A row that is masked as a whole has the
    softmax of its scores, where it had equal probabilities (or NaN, if the number was infinite): off unless asked for.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Where")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    condition, chosen, other = node.inputs
    if condition is None or chosen is None or other is None or reader_of(node.outputs[0], "Softmax") is None:
        return False
    if node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return False
    low, high = scalar_of(chosen), scalar_of(other)
    if (low is None) == (high is None):
        return False
    number, scores = (low, other) if low is not None else (high, chosen)
    if number is None or not number <= _MASKED or scores.dtype is None:
        return False
    writing, amount = Rewriting(editor, node), max(number, _LOWEST)
    is_masked = condition if low is not None else writing.each("Not", condition)
    ones = writing.cast(is_masked, scores.dtype)
    mask = writing.each("Mul", ones, writing.number(amount, scores, "masked"))
    return writing.finish(writing.op("Add", scores, mask, shape=node.outputs[0].shape))
