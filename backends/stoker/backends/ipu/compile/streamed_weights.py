"""Weights that are not compiled in (`constant_weights: false`): the runtime loads them from tensor data in the file, or from the user.

Poplar makes every trained parameter such a stream. Here it is every floating-point constant with more than one element, except
where ONNX Runtime's kernels need the value when the graph is loaded. Weights in eight bits stay compiled in: their scale belongs to them.
"""

from collections.abc import Mapping

import onnx_ir as ir

_NEED_CONSTANTS = frozenset({"Pad", "Resize", "Upsample"})


def stream_weights(model: ir.Model) -> Mapping[str, ir.TensorProtocol]:
    """Turns the weights of `model` into inputs, in place; gives their values by name."""
    graph = model.graph
    found = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            continue
        if value.is_graph_output() or any(use.node.op_type in _NEED_CONSTANTS for use in value.uses()):
            continue
        found[name] = tensor
        value.dtype, value.shape = tensor.dtype, tensor.shape  # type: ignore[assignment] # a tensor's shape is an ir.Shape
        graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    return found
