"""`fill_squeeze_axes`: says which dimensions a Squeeze without axes removes."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import input_at, is_op, new_constant, static_shape
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fill_squeeze_axes")
class FillSqueezeAxes(NodePass):
    """Gives a Squeeze without axes the axes of size 1 of its input, where the input's shape is known."""

    def visit(self, node: ir.Node) -> bool:
        if not is_op(node, "Squeeze") or input_at(node, 1) is not None:
            return False
        shape = static_shape(node.inputs[0])
        if shape is None:
            return False
        node.resize_inputs(2)
        axes = np.array([axis for axis, size in enumerate(shape) if size == 1], np.int64)
        node.replace_input_with(1, new_constant(node, axes, "axes"))
        return True
