"""Runs ONNX's checker and shape inference without copying weights: both accept serialised models of at most 2 GB."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from stoker.compiler.errors import PassError

#: Initialisers up to this size in bytes stay in the light model, because shapes and axes affect shape inference.
SMALL_BYTES = 1024


@contextmanager
def light_proto(model: ir.Model) -> Iterator[onnx.ModelProto]:
    """Yields the model with its large weights declared as inputs; `model` is restored at the end of the block.

    Initialisers of sub-graphs stay, because a branch of an If has no inputs.
    """
    graph = model.graph
    initializers, inputs = list(graph.initializers.values()), list(graph.inputs)
    known = set(inputs)
    try:
        for value in initializers:
            tensor = value.const_value
            if tensor is None or tensor.nbytes <= SMALL_BYTES:
                continue
            value.shape = ir.Shape(tensor.shape.numpy())
            value.type = ir.TensorType(tensor.dtype)
            del graph.initializers[str(value.name)]
            if value not in known:
                graph.inputs.append(value)
        proto = ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in initializers:
            graph.initializers.add(value)
    yield proto


def verify(model: ir.Model, when: str, *, shapes: bool = True) -> None:
    """Checks the structure and, if `shapes` is true, types and shapes.

    Raises:
        PassError: the model is invalid; the text says `when` and what ONNX found.
    """
    try:
        with light_proto(model) as proto:
            if not shapes:  # ONNX's checker requires a shape of each output, exporters and runtimes do not
                for value in proto.graph.output:
                    if value.type.HasField("tensor_type"):
                        value.type.tensor_type.shape.SetInParent()
            onnx.checker.check_model(proto, full_check=shapes)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise PassError(f"the model is invalid {when}: {reason}") from error


log = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> bool:
    """Adds inferred shapes and types; known dimensions stay. Returns whether anything was added.

    A contradiction that ONNX finds is logged, and inference continues for the rest: a target that needs a missing shape reports it.
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
    """Selects a dimension: a number wins over a name, the existing name over another name, and any name over none."""
    if isinstance(theirs, int) or isinstance(mine, int):
        return theirs
    return mine if mine.value is not None else theirs
