"""`replace_softmax`: a softmax over an odd number of elements gets one more."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@register("replace_softmax")
class ReplaceSoftmax(Pass):
    """Pads the input of a Softmax over the last dimension, where that is odd, with minus infinity to an even size, and cuts its output.

    IPUs compute with vectors of two or four halves. What is added has probability 0; the result is exact.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Softmax")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, shape = node.inputs[0], static_shape(node.inputs[0])
    if x is None or x.dtype not in _FLOATS or not shape or shape[-1] % 2 == 0 or shape[-1] == 1:
        return False
    rank, size = len(shape), shape[-1]
    if int_attribute(node, "axis", -1) not in (-1, rank - 1):
        return False
    writing, padded = Rewriting(editor, node), (*shape[:-1], size + 1)
    pads = writing.array(np.array([0] * (2 * rank - 1) + [1]), "pads")
    wide = writing.op("Pad", x, pads, writing.number(-np.inf, x, "nothing"), shape=padded, mode="constant")
    chances = writing.op("Softmax", wide, shape=padded, axis=rank - 1)
    bounds = [writing.array(np.array([at]), role) for at, role in ((0, "from"), (size, "to"), (rank - 1, "axis"))]
    return writing.finish(writing.op("Slice", chances, *bounds, shape=shape))
