"""`replace_bn_with_mul_add`: a batch normalisation with constant statistics is a factor and an offset for each channel."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_bn_with_mul_add")
class ReplaceBnWithMulAdd(Pass):
    """Replaces BatchNormalization in inference mode, with constant parameters, by Mul and Add of one number a channel.

    For those that `fuse_bn_into_conv` and `fuse_bn_into_gemm` leave. The numbers are computed in double precision; tolerance is rounding.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "BatchNormalization")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, rank = node.inputs[0], rank_of(node.inputs[0])
    if x is None or x.dtype is None or rank is None or rank < 2:
        return False
    if int_attribute(node, "training_mode", 0) or any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    parameters = [array.astype(np.float64) for value in node.inputs[1:5] if (array := constant_of(value)) is not None]
    if len(parameters) < 4:
        return False
    scale, offset, mean, variance = parameters
    factor = scale / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    sizes, dtype = (-1, *(1,) * (rank - 2)), x.dtype.numpy()
    writing = Rewriting(editor, node)
    scaled = writing.op("Mul", x, writing.array(factor.reshape(sizes).astype(dtype), "factor"), shape=x.shape)
    shift = (offset - mean * factor).reshape(sizes).astype(dtype)
    return writing.finish(writing.op("Add", scaled, writing.array(shift, "shift"), shape=x.shape))
