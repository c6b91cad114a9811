"""`move_subgraph_initializer`: weights belong to the whole model."""

import onnx_ir as ir
from onnx_ir.passes.common import LiftSubgraphInitializersToMainGraphPass, NameFixPass

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("move_subgraph_initializer")
class MoveSubgraphInitializer(Pass):
    """Moves initialisers of sub-graphs to the main graph; a name that is taken there or in another sub-graph gets a number."""

    def run(self, model: ir.Model) -> bool:
        if not LiftSubgraphInitializersToMainGraphPass()(model).modified:
            return False
        NameFixPass()(model)  # a sibling's value may have the name that is now visible to it from outside
        return True
