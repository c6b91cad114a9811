"""`eliminate_nop_pad`: padding by nothing."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, constant_ints, input_at, is_op
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_pad")
class EliminateNopPad(NodePass):
    """Removes Pad nodes whose pads are all 0, whatever their mode and value."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Pad"):
            return False
        pads = constant_ints(input_at(node, 1))
        return pads is not None and not any(pads) and bypass(node)
