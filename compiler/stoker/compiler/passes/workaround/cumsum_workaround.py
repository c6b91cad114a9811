"""`cumsum_workaround`: sums over all that comes before are a product with a triangle of ones."""

from typing import Final

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
#: The longest dimension that is summed over so: the triangle then takes 1 MiB in FP32, spread over all tiles.
_LONGEST: Final = 512


@register("cumsum_workaround")
class CumsumWorkaround(Pass):
    """Replaces CumSum of floats along a constant axis of at most 512 elements by MatMul with a triangle of ones, Transpose around it if the
    axis is not the last. Integers and longer dimensions stay.

    Products are what an IPU is fastest at. Tolerance is rounding, in another order of the same sums. An infinity or NaN in a row spreads
    over the whole row. Which gap of PopART upstream works around is not documented.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "CumSum")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x, shape, axes = node.inputs[0], static_shape(node.inputs[0]), constant_ints(node.inputs[1])
    if x is None or x.dtype not in _FLOATS or not shape or axes is None or len(axes) != 1:
        return False
    axis, rank = axes[0] % len(shape), len(shape)
    size = shape[axis]
    if not 0 < size <= _LONGEST:
        return False
    writing, turned = Rewriting(editor, node), list(range(rank))
    turned[axis], turned[-1] = rank - 1, axis  # an exchange of two, which is its own inverse
    moved = tuple(shape[each] for each in turned)
    rows = x if axis == rank - 1 else writing.op("Transpose", x, shape=moved, perm=turned)
    triangle = writing.array(_triangle(node, size).astype(x.dtype.numpy()), "triangle")
    sums = writing.op("MatMul", rows, triangle, shape=moved)
    return writing.finish(sums if axis == rank - 1 else writing.op("Transpose", sums, shape=shape, perm=turned))


def _triangle(node: ir.Node, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[i, j] says whether element i is part of sum j."""
    start = int_attribute(node, "exclusive", 0)
    upper = np.triu(np.ones((size, size), np.bool_), start)
    return upper.T if int_attribute(node, "reverse", 0) else upper
