"""`replace_round`: rounding half to even, in operators that round nothing else."""

import onnx_ir as ir

from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_round")
class ReplaceRound(Pass):
    """Replaces Round by Floor and comparisons that say what becomes of a half: it goes to the even neighbour, as ONNX asks. Exact.

    For targets whose own rounding treats a half in another way; upstream documents that its pass is about halves, and no more.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Round")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None or x.dtype is None:
        return False
    writing, truth = Rewriting(editor, node), ir.DataType.BOOL
    half = writing.number(0.5, x, "half")
    below = writing.each("Floor", x)
    rest = writing.each("Sub", x, below)  # exact, and NaN for what is infinite, which then stays as it is
    # An odd number's half is not whole.
    halved = writing.each("Mul", below, half)
    is_odd = writing.each("Greater", halved, writing.each("Floor", halved), dtype=truth)
    is_half = writing.each("Equal", rest, half, dtype=truth)
    is_more = writing.each("Greater", rest, half, dtype=truth)
    goes_up = writing.each("Or", is_more, writing.each("And", is_half, is_odd))
    step = writing.cast(goes_up, x.dtype)
    return writing.finish(writing.each("Add", below, step))
