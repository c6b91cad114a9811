"""`fuse_consecutive_reshape`: only the last shape counts."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, input_at, is_op, new_constant, producer_of, remove_if_unused, replace_node
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register

_KEEP_ORDER = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@register("fuse_consecutive_reshape")
class FuseConsecutiveReshape(NodePass):
    """Reshapes directly what a Reshape, Flatten, Squeeze or Unsqueeze has reshaped before; the first stays if others read it.

    A 0 in the target copies a dimension of what lies between; it is replaced by its size, and without a known size the two stay.
    """

    def visit(self, node: ir.Node) -> bool:
        first = producer_of(node.inputs[0], *_KEEP_ORDER) if is_op(node, "Reshape") else None
        target = constant_ints(input_at(node, 1)) if first is not None else None
        if first is None or target is None:
            return False
        literal = bool(node.attributes.get_int("allowzero", 0))
        between = first.outputs[0].shape
        if not literal:
            for axis, size in enumerate(target):
                if size == 0:
                    known = None if between is None or axis >= len(between) else between[axis]
                    if not isinstance(known, int) or known == 0:
                        return False
                    target[axis] = known
        shape = new_constant(node, np.array(target, np.int64), "shape")
        replace_node(node, "Reshape", [first.inputs[0], shape], {"allowzero": 1} if literal else {})
        remove_if_unused(first)
        return True
