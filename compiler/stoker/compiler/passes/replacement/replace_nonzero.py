"""`replace_nonzero`: where one element is known to differ from zero, its place is that of a maximum."""

from math import prod

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_nonzero")
class ReplaceNonzero(Pass):
    """Replaces NonZero by ArgMax where the model declares that it finds exactly one element: its output has shape [rank, 1]. Exact then.

    A device of static shapes has no NonZero otherwise. Where the declaration is wrong, the first element found is given, or the place of
    element 0 if there is none.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "NonZero")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, shape, found = node.inputs[0], static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if x is None or x.dtype is None or not shape or prod(shape) == 0 or found != (len(shape), 1):
        return False
    writing, whole, truth = Rewriting(editor, node), ir.DataType.INT32, ir.DataType.BOOL
    if x.dtype is not truth:
        is_zero = writing.each("Equal", x, writing.number(0, x, "zero"), dtype=truth)
        x = writing.each("Not", is_zero)
    ones = writing.cast(x, whole)
    flat = writing.op("Reshape", ones, writing.array(np.array([-1]), "flat"), shape=(prod(shape),))
    indices = writing.op("ArgMax", flat, dtype=ir.DataType.INT64, shape=(1,), axis=0, keepdims=1)
    if len(shape) > 1:  # from the place in all to the place in each dimension, in the 32 bits that devices compute with
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        narrow = writing.cast(indices, whole)
        rows = writing.each("Div", narrow, writing.array(np.array(strides, np.int32), "strides"))
        coordinates = writing.each("Mod", rows, writing.array(np.array(shape, np.int32), "sizes"))
        indices = writing.cast(coordinates, ir.DataType.INT64)
    return writing.finish(writing.op("Reshape", indices, writing.array(np.array([len(shape), 1]), "as_column"), shape=found))
