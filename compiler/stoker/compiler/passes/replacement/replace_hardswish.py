"""`replace_hardswish`: x times a hard sigmoid of x."""

import onnx_ir as ir

from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_hardswish")
class ReplaceHardswish(Pass):
    """Replaces HardSwish by Mul of x and HardSigmoid(x) with slope 1/6 and offset 1/2, which is its definition. Tolerance is rounding."""

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "HardSwish")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None:
        return False
    writing = Rewriting(editor, node)
    gate = writing.each("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    return writing.finish(writing.each("Mul", x, gate))
