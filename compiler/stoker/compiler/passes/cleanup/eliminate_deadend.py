"""`eliminate_deadend`: nodes that nothing reads."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("eliminate_deadend")
class EliminateDeadend(Pass):
    """Removes nodes whose outputs nothing reads, with the initialisers that only they read; optional outputs that nothing reads go too."""

    def run(self, model: ir.Model) -> bool:
        return bool(RemoveUnusedNodesPass()(model).modified)
