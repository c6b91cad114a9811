"""Shape inference by ONNX, merged into an `onnx_ir` model without copying its weights."""

import logging

import onnx
import onnx_ir as ir

from stoker.compiler.passes.verify import light_proto

log = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> bool:
    """Fills in the shapes and types that follow from what is known; known dimensions stay. Returns whether anything was filled in.

    A contradiction that ONNX finds is logged with its text, and what can be inferred beside it is kept: a target that needs
    a shape will say which it misses.
    """
    with light_proto(model) as proto:
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError as error:
            log.warning("shapes could be inferred only in part: %s", " ".join(str(error).split()))
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return _merge(model.graph, inferred.graph)


def _merge(graph: ir.Graph, inferred: onnx.GraphProto) -> bool:
    known = {each.name: each.type for each in [*inferred.value_info, *inferred.output, *inferred.input]}
    changed = False
    values = [*graph.inputs, *graph.outputs]
    for node in graph:
        values += node.outputs
    for value in values:
        found = known.get(value.name or "")
        if found is not None:
            changed = _merge_value(value, found) or changed
    inner = {node.output[0]: node for node in inferred.node if node.output}
    for node in graph:
        match = inner.get(node.outputs[0].name or "") if node.outputs else None
        if match is None:
            continue
        for attribute in match.attribute:
            ours = node.attributes.get(attribute.name)
            if ours is None or ours.is_ref():
                continue
            if attribute.type == onnx.AttributeProto.GRAPH:
                changed = _merge(ours.as_graph(), attribute.g) or changed
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for mine, theirs in zip(ours.as_graphs(), attribute.graphs, strict=True):
                    changed = _merge(mine, theirs) or changed
    return changed


def _merge_value(value: ir.Value, found: onnx.TypeProto) -> bool:
    changed = False
    kind = ir.serde.deserialize_type_proto_for_type(found)
    if value.type is None and kind is not None:
        value.type = kind
        changed = True
    shape = ir.serde.deserialize_type_proto_for_shape(found)
    if shape is None:
        return changed
    if value.shape is None:
        value.shape = shape
        return True
    if len(value.shape) != len(shape) or value.shape == shape:
        return changed
    dims = [mine if isinstance(mine, int) else theirs for mine, theirs in zip(value.shape, shape, strict=True)]
    merged = ir.Shape([_named(mine, theirs) for mine, theirs in zip(value.shape, dims, strict=True)])
    if merged == value.shape:
        return changed
    value.shape = merged
    return True


def _named(mine: int | ir.SymbolicDim, theirs: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """A number over a name, our own name over another, any name over none."""
    if isinstance(theirs, int) or isinstance(mine, int):
        return theirs
    return mine if mine.value is not None else theirs
