"""`eliminate_nop_expand`: broadcasting to the shape that a value has."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, constant_ints, input_at, is_op, rank_of, static_shape
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_expand")
class EliminateNopExpand(NodePass):
    """Removes Expand nodes whose target adds no dimension and enlarges none."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Expand"):
            return False
        source, target = node.inputs[0], constant_ints(input_at(node, 1))
        shape = static_shape(source)
        if shape is not None and shape == static_shape(node.outputs[0]):
            return bypass(node)
        rank = rank_of(source)
        if source is None or source.shape is None or rank is None or target is None or len(target) > rank:
            return False
        tail = list(source.shape)[rank - len(target) :]
        return all(wanted in (1, size) for wanted, size in zip(target, tail, strict=True)) and bypass(node)
