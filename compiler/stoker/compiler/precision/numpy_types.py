"""Models whose inputs and outputs numpy can hold, so that ONNX Runtime's Python API takes and gives them: bfloat16 becomes float32."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

_BFLOAT16, _FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT


def with_numpy_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` itself, or a copy that takes and gives FLOAT, under the same names, where `model` has BFLOAT16. Every value is the same."""
    given = {each.name for each in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.type.tensor_type.elem_type == _BFLOAT16 and value.name not in given]
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type == _BFLOAT16]
    if not inputs and not outputs:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    inner = {name: f"{name}/BFLOAT16" for name in (*inputs, *outputs)}
    _rename(made.graph, inner)
    for value in (*made.graph.input, *made.graph.output):
        if value.name in inner:
            value.type.tensor_type.elem_type = _FLOAT
    before = [helper.make_node("Cast", [name], [inner[name]], to=_BFLOAT16) for name in inputs]
    # An output that is an input is both: its name is the input's then, and it holds the same values.
    after = [helper.make_node("Cast", [inner[name]], [name], to=_FLOAT) for name in outputs if name not in inputs]
    nodes = [*before, *made.graph.node, *after]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def numpy_feeds(feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """`feeds` with arrays of `ml_dtypes.bfloat16` as float32, which models of `with_numpy_types` take."""
    return {name: array.astype(np.float32) if array.dtype.name == "bfloat16" else array for name, array in feeds.items()}


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """In all nodes and initializers, sub-graphs included: ONNX lets no inner value have the name of an outer one."""
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
        for inner in _graphs(node):
            _rename(inner, names)
            for value in (*inner.output, *inner.input):
                value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for info in graph.value_info:
        info.name = names.get(info.name, info.name)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
