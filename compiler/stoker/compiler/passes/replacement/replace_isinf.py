"""`replace_isinf`: infinite is what is larger than the largest number."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


@register("replace_isinf")
class ReplaceIsinf(Pass):
    """Replaces IsInf by a comparison with the largest finite number of the type. Exact.

    Compared with the largest number, not with infinity: `float_to_half` makes that constant 65500, and infinity stays above it (65504, the
    largest FP16 number, then is so too).
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "IsInf")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x = node.inputs[0]
    finds_positive, finds_negative = (int_attribute(node, f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if x is None or x.dtype not in _FLOATS or not (finds_positive or finds_negative):
        return False
    writing, largest = Rewriting(editor, node), float(np.finfo(x.dtype.numpy()).max)
    if finds_positive:
        size = writing.each("Abs", x) if finds_negative else x
        return writing.finish(writing.each("Greater", size, writing.number(largest, x, "largest"), dtype=ir.DataType.BOOL))
    return writing.finish(writing.each("Less", x, writing.number(-largest, x, "lowest"), dtype=ir.DataType.BOOL))
