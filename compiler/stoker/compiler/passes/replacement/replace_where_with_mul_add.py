"""`replace_where_with_mul_add`: a choice between two tensors is a sum of products with 0 and 1."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, rank_of
from stoker.compiler.passes.matching.constants import scalar_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@register("replace_where_with_mul_add", against=("replace_where_with_wherev2",))
class ReplaceWhereWithMulAdd(Pass):
    """Replaces Where of floats by m * a + (1 - m) * b with m of 0 and 1; a constant 0 takes no product. Exact for finite numbers.

    What is not chosen must be finite, since 0 * infinity is NaN: constants are looked at, computed values cannot be. Off unless asked for.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Where")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    condition, chosen, other = node.inputs
    dtype, shape = node.outputs[0].dtype, node.outputs[0].shape
    if condition is None or chosen is None or other is None or dtype not in _FLOATS or not (_is_finite(chosen) and _is_finite(other)):
        return False
    writing = Rewriting(editor, node)
    terms: list[ir.Value] = []
    for value, is_chosen in ((chosen, True), (other, False)):
        if terms and _is_zero_scalar(value):  # the first term has been written: a zero adds nothing to it
            continue
        if is_chosen and _is_zero_scalar(value) and not _is_zero_scalar(other):
            continue
        taken = condition if is_chosen else writing.each("Not", condition)
        factor = writing.cast(taken, dtype)
        terms.append(writing.each("Mul", factor, value))
    return writing.finish(writing.op("Add", *terms, shape=shape) if len(terms) == 2 else terms[0])


def _is_finite(value: ir.Value) -> bool:
    array = constant_of(value)
    return array is None or bool(np.all(np.isfinite(array)))


def _is_zero_scalar(value: ir.Value) -> bool:
    """Whether it is a constant zero without dimensions, which has no part in the shape of the result."""
    return rank_of(value) == 0 and scalar_of(value) == 0
