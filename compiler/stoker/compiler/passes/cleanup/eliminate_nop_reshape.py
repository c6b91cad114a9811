"""`eliminate_nop_reshape`: a reshape to the shape that a value has."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, constant_ints, input_at, is_op, static_shape
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_reshape")
class EliminateNopReshape(NodePass):
    """Removes Reshape nodes that keep the shape; of variable dimensions, a 0 keeps one and a single -1 is what is left."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Reshape"):
            return False
        source = node.inputs[0]
        shape = static_shape(source)
        if shape is not None and shape == static_shape(node.outputs[0]):
            return bypass(node)
        target = constant_ints(input_at(node, 1))
        if source is None or source.shape is None or target is None or len(target) != len(source.shape):
            return False
        zero_keeps = not node.attributes.get_int("allowzero", 0)
        kept = [wanted == size or (wanted == 0 and zero_keeps) for wanted, size in zip(target, source.shape, strict=True)]
        left = [wanted for wanted, is_kept in zip(target, kept, strict=True) if not is_kept]
        return left in ([], [-1]) and bypass(node)
