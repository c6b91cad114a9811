"""Checks a model without copying its weights: ONNX's checker and shape inference take serialised models of at most 2 GB."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from stoker.compiler.errors import PassError

#: Initialisers up to this size stay in the light model, because shapes, axes and the like decide what shapes are inferred.
SMALL_BYTES = 1024


@contextmanager
def light_proto(model: ir.Model) -> Iterator[onnx.ModelProto]:
    """The model with its large weights declared as inputs instead; `model` is as it was once the block ends.

    Initialisers of sub-graphs stay, since a branch of an If can have no inputs.
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
    """Checks structure and, where `shapes` is true, types and shapes.

    Raises:
        PassError: the model is invalid; the text says `when` and what ONNX found.
    """
    try:
        with light_proto(model) as proto:
            onnx.checker.check_model(proto, full_check=shapes)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise PassError(f"the model is invalid {when}: {reason}") from error
