"""`eliminate_nop_transpose`: dimensions that stay where they are."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op, rank_of
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_transpose")
class EliminateNopTranspose(NodePass):
    """Removes Transpose nodes that keep the order of dimensions; without `perm` they reverse it, which is nothing up to rank 1."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Transpose"):
            return False
        order = node.attributes.get("perm")
        if order is None:
            rank = rank_of(node.inputs[0])
            return rank is not None and rank <= 1 and bypass(node)
        return not order.is_ref() and list(order.as_ints()) == sorted(order.as_ints()) and bypass(node)
