"""Finds the node for which ONNX Runtime rejects a whole model: its errors name no node where a kernel rejects an attribute or a type."""

from collections.abc import Callable, Iterator

import onnx
from onnx import helper

#: Distinct nodes tried: a session of one node takes milliseconds.
_MOST_TRIED = 2000


def culprit(model: onnx.ModelProto, is_rejected: Callable[[onnx.ModelProto], bool]) -> str:
    """Returns the first node of the main graph that is rejected alone, as `node 'name' (Operator of opset N)`; empty if none is.

    Args:
        model: A model that ONNX Runtime rejects; not changed.
        is_rejected: Whether ONNX Runtime rejects a model.
    """
    types = _types(model)
    versions = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    tried = set()
    for node in model.graph.node:
        alone = _alone(node, model, types)
        if alone is None:
            continue
        kind = (node.op_type, node.domain, *(each.SerializeToString() for each in (*node.attribute, *(v.type for v in alone.graph.input))))
        if kind in tried:
            continue
        tried.add(kind)
        if len(tried) > _MOST_TRIED:
            return ""
        if is_rejected(alone):
            name = node.name or next(iter(node.output), "")
            domain = node.domain or "ai.onnx"
            prefix = "" if domain == "ai.onnx" else f"{domain}::"
            return f"node '{name}' ({prefix}{node.op_type} of opset {versions.get(domain, '?')})"
    return ""


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError):
        inferred = model
    found = {value.name: value.type for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)}
    for tensor in model.graph.initializer:
        found[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return found


def _alone(node: onnx.NodeProto, model: onnx.ModelProto, types: dict[str, onnx.TypeProto]) -> onnx.ModelProto | None:
    """Returns a model of `node` only; None if the type of a tensor is not known."""
    names = dict.fromkeys(name for name in (*node.input, *_outer_names(node)) if name)
    outputs = [name for name in node.output if name]
    if any(name not in types for name in (*names, *outputs)):
        return None
    inputs = [helper.make_value_info(name, types[name]) for name in names]
    graph = helper.make_graph([node], "node", inputs, [helper.make_value_info(name, types[name]) for name in outputs])
    alone = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    alone.ir_version = model.ir_version
    return alone


def _outer_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the values that the sub-graphs of `node` read from outside."""
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else [])):
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {name for each in graph.node for name in each.output}
            read = {name for each in graph.node for name in (*each.input, *_outer_names(each))} | {value.name for value in graph.output}
            yield from sorted(read - own)
