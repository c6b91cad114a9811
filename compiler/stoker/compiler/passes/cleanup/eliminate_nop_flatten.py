"""`eliminate_nop_flatten`: a matrix is flat."""

from math import prod

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op, rank_of, static_shape
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_flatten")
class EliminateNopFlatten(NodePass):
    """Removes Flatten nodes that give a matrix the shape it has."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Flatten") or rank_of(node.inputs[0]) != 2:
            return False
        axis = node.attributes.get_int("axis", 1)
        if axis in (1, -1):
            return bypass(node)
        shape = static_shape(node.inputs[0])
        at = axis + 2 if axis < 0 else axis
        return shape is not None and (prod(shape[:at]), prod(shape[at:])) == shape and bypass(node)
