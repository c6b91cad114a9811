"""`replace_greater_or_equal`: the comparison is taken apart."""

import onnx_ir as ir

from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.comparing import split_or_equal


@register("replace_greater_or_equal")
class ReplaceGreaterOrEqual(Pass):
    """Replaces GreaterOrEqual of floats by Or of Greater and Equal, and of integers by Not of Less. Exact; NaN compares false as before."""

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "GreaterOrEqual")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    return split_or_equal(editor, node, "Greater", "Less")
