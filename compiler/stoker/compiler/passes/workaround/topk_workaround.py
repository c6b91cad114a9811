"""`topk_workaround`: the smallest are the largest of the negated, and the axis counts from the start."""

import onnx_ir as ir

from stoker.compiler.passes.edit import rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_SIGNED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


@register("topk_workaround")
class TopkWorkaround(Pass):
    """Replaces TopK of the smallest by TopK of the largest of the negated elements, negated again, and makes its axis count from the start.

    Exact, ties included, but for the smallest integer of a type, which has no negative. Which gap of PopART upstream works around is not
    documented.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _repair, "TopK")


def _repair(editor: GraphEditor, node: ir.Node) -> bool:
    x, rank, axis = node.inputs[0], rank_of(node.inputs[0]), int_attribute(node, "axis", -1)
    changed = False
    if rank is not None and axis < 0:
        node.attributes["axis"] = ir.AttrInt64("axis", axis + rank)
        changed = True
    if x is None or int_attribute(node, "largest", 1) or x.dtype not in _SIGNED:
        return changed
    node.replace_input_with(0, Rewriting(editor, node).each("Neg", x))
    node.attributes["largest"] = ir.AttrInt64("largest", 1)
    values = node.outputs[0]
    if values.uses() or values.is_graph_output():
        editor.insert_after(node, values, "Neg", name=f"{node.name or 'TopK'}/Neg", metadata=node.metadata_props)
    return True
