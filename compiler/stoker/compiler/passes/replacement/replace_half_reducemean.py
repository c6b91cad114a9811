"""`replace_half_reducemean`: a mean in FP16 is a sum and a factor."""

from math import prod
from typing import Final

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, input_at, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

#: With more elements the reciprocal of their number would be subnormal in FP16.
_MOST_ELEMENTS: Final = 1 << 14


@register("replace_half_reducemean")
class ReplaceHalfReducemean(Pass):
    """Replaces ReduceMean in FP16 by ReduceSum and Mul. Tolerance is two roundings, as long as the sum stays below 65504, which the mean
    itself need not: off unless asked for.

    For known sizes, and at most 16384 elements a mean.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "ReduceMean")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, axes = node.inputs[0], input_at(node, 1)
    shape = static_shape(x)
    if x is None or x.dtype is not ir.DataType.FLOAT16 or shape is None:
        return False
    chosen = [] if axes is None else constant_ints(axes)
    if chosen is None or (not chosen and int_attribute(node, "noop_with_empty_axes", 0)):
        return False
    count = prod(shape[axis] for axis in chosen) if chosen else prod(shape)
    if not 0 < count <= _MOST_ELEMENTS:
        return False
    writing, result = Rewriting(editor, node), node.outputs[0].shape
    total = writing.op("ReduceSum", x, axes, shape=result, keepdims=int_attribute(node, "keepdims", 1))
    return writing.finish(writing.op("Mul", total, writing.number(1 / count, x, "share"), shape=result))
