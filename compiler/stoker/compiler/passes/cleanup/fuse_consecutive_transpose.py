"""`fuse_consecutive_transpose`: two changes of order are one."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op, producer_of, rank_of, remove_if_unused, replace_node
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_consecutive_transpose")
class FuseConsecutiveTranspose(NodePass):
    """Makes one Transpose of two in a row, or none if the second undoes the first. A first one that others read as well stays for them."""

    def visit(self, node: ir.Node) -> bool:
        first = producer_of(node.inputs[0], "Transpose") if is_op(node, "Transpose") else None
        if first is None:
            return False
        inner, outer = _order(first), _order(node)
        if inner is None or outer is None:
            return False
        order = [inner[axis] for axis in outer]
        if order == sorted(order):
            changed = bypass(node, first.inputs[0])
        else:
            replace_node(node, "Transpose", [first.inputs[0]], {"perm": order})
            changed = True
        remove_if_unused(first)
        return changed


def _order(node: ir.Node) -> list[int] | None:
    given = node.attributes.get("perm")
    if given is not None:
        return None if given.is_ref() else list(given.as_ints())
    rank = rank_of(node.inputs[0])
    return None if rank is None else list(reversed(range(rank)))
