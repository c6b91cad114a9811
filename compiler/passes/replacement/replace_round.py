"""`replace_round`: rounding half to even, in operators that round nothing else."""

import onnx_ir as ir

from compiler.passes.matching.each_node import rewrite_each
from compiler.passes.matching.editing import GraphEditor
from compiler.passes.pass_ import Pass
from compiler.passes.registry import register
from compiler.passes.replacement.rewriting import Rewriting


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
    below = writing.op("Floor", x)
    rest = writing.op("Sub", x, below, shape=x.shape)  # exact, and NaN for what is infinite, which then stays as it is
    # An odd number's half is not whole.
    halved = writing.op("Mul", below, half, shape=x.shape)
    is_odd = writing.op("Greater", halved, writing.op("Floor", halved), dtype=truth, shape=x.shape)
    is_half = writing.op("Equal", rest, half, dtype=truth, shape=x.shape)
    is_more = writing.op("Greater", rest, half, dtype=truth, shape=x.shape)
    goes_up = writing.op("Or", is_more, writing.op("And", is_half, is_odd, shape=x.shape), shape=x.shape)
    step = writing.op("Cast", goes_up, dtype=x.dtype, to=int(x.dtype))
    return writing.finish(writing.op("Add", below, step, shape=x.shape))
