"""Which values are known at compile time: constants, shapes, and what is computed from them alone."""

import onnx_ir as ir

#: Operators whose result is another each time, depends on more than their inputs, or, for weights in eight bits, is decoded on the device.
_NEVER = frozenset(
    [
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("If", "Loop", "Scan"),
        "DequantizeLinear",
    ]
)


def static_values(model: ir.Model) -> frozenset[ir.Value]:
    """Values of `model`, sub-graphs included, that need no input of the model to be computed."""
    known: set[ir.Value] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        given = set(graph.inputs) if graph is model.graph else set()
        known.update(value for value in graph.initializers.values() if value not in given)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _NEVER:
            continue
        if (node.op_type in ("Shape", "Size") and node.inputs and _is_static(node.inputs[0])) or all(
            value is None or value in known for value in node.inputs
        ):
            known.update(node.outputs)
    return frozenset(known)


def _is_static(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.is_static()
