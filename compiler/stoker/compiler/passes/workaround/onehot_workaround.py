"""`onehot_workaround`: OneHot takes integers, and an axis that counts from the start."""

import onnx_ir as ir

from stoker.compiler.passes.edit import rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)


@register("onehot_workaround")
class OnehotWorkaround(Pass):
    """Casts indices of OneHot that are no INT32 or INT64 to INT64, which ONNX says is done before use, and makes its axis count from the
    start.

    Exact. Which gap of PopART upstream works around is not documented.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _repair, "OneHot")


def _repair(editor: GraphEditor, node: ir.Node) -> bool:
    changed = False
    indices, rank, axis = node.inputs[0], rank_of(node.inputs[0]), int_attribute(node, "axis", -1)
    if indices is not None and indices.dtype is not None and indices.dtype not in _INDICES:
        node.replace_input_with(0, Rewriting(editor, node).cast(indices, ir.DataType.INT64))
        changed = True
    if rank is not None and axis < 0:
        node.attributes["axis"] = ir.AttrInt64("axis", axis + rank + 1)
        changed = True
    return changed
