"""`eliminate_nop_cast`: a cast to the type that a value has is none."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_cast")
class EliminateNopCast(NodePass):
    """Removes Cast and CastLike nodes whose input is known to be of the resulting element type already."""

    def visit(self, node: ir.Node) -> bool:
        source = node.inputs[0] if node.inputs else None
        if source is None or source.dtype is None:
            return False
        if is_op(node, "Cast"):
            wanted = node.attributes.get_int("to", 0)
        elif is_op(node, "CastLike") and node.inputs[1] is not None:
            wanted = int(node.inputs[1].dtype or 0)
        else:
            return False
        return int(source.dtype) == wanted and bypass(node)
