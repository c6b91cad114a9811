"""`replace_groupnorm_with_fast_norm`: a group norm of one group normalises each sample as a whole."""

from math import prod

import numpy as np
import onnx_ir as ir

from compiler.passes.edit import static_shape
from compiler.passes.matching.each_node import rewrite_each
from compiler.passes.matching.edges import float_attribute, int_attribute
from compiler.passes.matching.editing import GraphEditor
from compiler.passes.pass_ import Pass
from compiler.passes.registry import register
from compiler.passes.replacement.rewriting import Rewriting


@register("replace_groupnorm_with_fast_norm")
class ReplaceGroupnormWithFastNorm(Pass):
    """Replaces GroupNormalization of one group, in FP16 and of known shape, by InstanceNormalization of samples laid out as one channel.

    Upstream's FastNorm operator is Poplar's own. Instance normalisation computes the same with the same two numbers as parameters, exists
    in every opset (group normalisation only since 18), and moves nothing: the reshapes around it are free. Tolerance is rounding.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "GroupNormalization")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, scale, bias = node.inputs
    shape = static_shape(x)
    if x is None or x.dtype is not ir.DataType.FLOAT16 or shape is None or int_attribute(node, "num_groups", 0) != 1:
        return False
    if static_shape(scale) != (1,) or static_shape(bias) != (1,):  # since opset 21 there is one of each for a channel
        return False
    writing = Rewriting(editor, node)
    flat = (shape[0], 1, prod(shape[1:]))
    rows = writing.op("Reshape", x, writing.array(np.array(flat), "as_one_channel"), shape=flat)
    epsilon = float_attribute(node, "epsilon", 1e-5)
    normal = writing.op("InstanceNormalization", rows, scale, bias, shape=flat, epsilon=epsilon)
    return writing.finish(writing.op("Reshape", normal, writing.array(np.array(shape), "as_it_was"), shape=shape))
