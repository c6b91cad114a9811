"""`replace_castlike`: a cast to the type of another tensor is a cast to a type."""

import onnx_ir as ir

from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_castlike")
class ReplaceCastlike(Pass):
    """Replaces CastLike by Cast where the type to follow is known. Exact."""

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "CastLike")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    value, like = node.inputs
    if value is None or like is None or like.dtype is None:
        return False
    writing = Rewriting(editor, node)
    return writing.finish(writing.cast(value, like.dtype))
