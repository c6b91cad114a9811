"""`remove_empty_concat_inputs`: what has no elements adds nothing."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("remove_empty_concat_inputs")
class RemoveEmptyConcatInputs(Pass):
    """Takes inputs whose size along the axis is known to be 0 out of Concat, and a Concat of one input altogether. Exact.

    A Concat of nothing but such inputs stays.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _remove, "Concat")


def _remove(editor: GraphEditor, node: ir.Node) -> bool:
    axis = int_attribute(node, "axis", 0)
    kept = [value for value in node.inputs if not _is_empty(value, axis)]
    if not kept or (len(kept) == len(node.inputs) > 1):
        return False
    dropped = [value for value in node.inputs if value is not None and _is_empty(value, axis)]
    if len(kept) == 1:
        changed = bypass(node, kept[0])
    else:
        for index, value in enumerate(kept):
            node.replace_input_with(index, value)
        node.resize_inputs(len(kept))
        changed = True
    if changed:
        editor.remove_dead(*(value.producer() for value in dropped))
        editor.drop_unused_initializers(dropped)
    return changed


def _is_empty(value: ir.Value | None, axis: int) -> bool:
    shape = None if value is None else value.shape
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0
