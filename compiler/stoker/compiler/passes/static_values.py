"""Finds the values of a model that are known when it is compiled."""

import onnx_ir as ir

#: Operators whose result is random, depends on more than their inputs, or (weights in 8 bits) is decoded on the device.
_NEVER = frozenset(
    [
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("If", "Loop", "Scan"),
        "DequantizeLinear",
    ]
)


def static_values(model: ir.Model, *, are_shapes_fixed: bool = False) -> frozenset[ir.Value]:
    """Returns the values of `model`, including sub-graphs, that do not depend on the data of the model's inputs.

    `are_shapes_fixed` counts the shapes of all tensors as known, also those that the model leaves open.
    """
    known: set[ir.Value] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        given = set(graph.inputs) if graph is model.graph else set()
        known.update(value for value in graph.initializers.values() if value not in given)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _NEVER:
            continue
        reads_shape = node.op_type in ("Shape", "Size") and node.inputs and (are_shapes_fixed or _is_static(node.inputs[0]))
        if reads_shape or all(value is None or value in known for value in node.inputs):
            known.update(node.outputs)
    return frozenset(known)


def _is_static(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.is_static()
