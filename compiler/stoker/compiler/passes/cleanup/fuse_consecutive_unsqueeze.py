"""`fuse_consecutive_unsqueeze`: dimensions of size 1 are added at once."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, input_at, is_op, new_constant, producer_of, rank_of, remove_if_unused, replace_node
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_consecutive_unsqueeze")
class FuseConsecutiveUnsqueeze(NodePass):
    """Makes one Unsqueeze of two in a row with constant axes, where the rank is known or no axis counts from the back."""

    def visit(self, node: ir.Node) -> bool:
        first = producer_of(node.inputs[0], "Unsqueeze") if is_op(node, "Unsqueeze") else None
        if first is None:
            return False
        inner, outer = constant_ints(input_at(first, 1)), constant_ints(input_at(node, 1))
        rank = rank_of(first.inputs[0])
        if inner is None or outer is None or (rank is None and min(inner + outer, default=0) < 0):
            return False
        middle = (rank or 0) + len(inner)
        last = middle + len(outer)
        outer = [axis % last if axis < 0 else axis for axis in outer]
        inner = [axis % middle if axis < 0 else axis for axis in inner]
        # What the second adds pushes what the first added to the back.
        free = [axis for axis in range(max([*inner, *outer], default=0) + last + 1) if axis not in outer]
        axes = sorted([*outer, *(free[axis] for axis in inner)])
        replace_node(node, "Unsqueeze", [first.inputs[0], new_constant(node, np.array(axes, np.int64), "axes")])
        remove_if_unused(first)
        return True
