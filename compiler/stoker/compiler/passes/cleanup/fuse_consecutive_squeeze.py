"""`fuse_consecutive_squeeze`: dimensions of size 1 are removed at once."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, input_at, is_op, new_constant, producer_of, rank_of, remove_if_unused, replace_node
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_consecutive_squeeze")
class FuseConsecutiveSqueeze(NodePass):
    """Makes one Squeeze of two in a row that both name their axes (`fill_squeeze_axes` lets them), where the rank is known."""

    def visit(self, node: ir.Node) -> bool:
        first = producer_of(node.inputs[0], "Squeeze") if is_op(node, "Squeeze") else None
        if first is None:
            return False
        rank = rank_of(first.inputs[0])
        inner, outer = constant_ints(input_at(first, 1)), constant_ints(input_at(node, 1))
        if rank is None or inner is None or outer is None:
            return False
        gone = {axis % rank for axis in inner}
        left = [axis for axis in range(rank) if axis not in gone]
        axes = sorted(gone | {left[axis] for axis in outer})
        replace_node(node, "Squeeze", [first.inputs[0], new_constant(node, np.array(axes, np.int64), "axes")])
        remove_if_unused(first)
        return True
