"""The weights that the graphs of all batch sizes share, each stored once.

A graph names them as external data. Initialisers of equal type, shape and content are one weight, under whatever name they go in the
graphs; small ones, such as shapes, and those that not all graphs have, stay inside their graph.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.lowering.typed_graph import FreeNames

#: Tensors smaller than this stay in their graph: the section around a weight would take as much.
LEAST_BYTES = 256
#: Where the graphs say that weights lie; ONNX requires a file name; no reader opens it.
_LOCATION = "weights"

_Content = tuple[str, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights by the name that the graphs know them by.

    Attributes:
        arrays: Their values.
        digests: SHA-256 of their bytes.
    """

    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, bytes]


def share_weights(models: Sequence[ir.Model]) -> SharedWeights:
    """Moves the weights that all of `models` have out of them, in place, and returns them."""
    digests: dict[int, bytes] = {}
    contents = [_contents(model.graph, digests) for model in models]
    names = [FreeNames(model) for model in models]
    shared: dict[str, np.ndarray] = {}
    shared_digests: dict[str, bytes] = {}
    for content, first in contents[0].items():
        if not all(content in each for each in contents):
            continue
        name = _common_name(first[0].name or "weight", [each[content] for each in contents], names, shared)
        array = _array(first[0])
        shared[name], shared_digests[name] = array, content[2]
        for model, each in zip(models, contents, strict=True):
            _refer(model.graph, each[content], name, array)
    return SharedWeights(shared, shared_digests)


def _contents(graph: ir.Graph, digests: dict[int, bytes]) -> dict[_Content, list[ir.Value]]:
    """The initialisers worth sharing, by content."""
    found: dict[_Content, list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LEAST_BYTES or value.is_graph_output():
            continue
        if id(tensor) not in digests:
            digests[id(tensor)] = hashlib.sha256(tensor.tobytes()).digest()
        found.setdefault((tensor.dtype.name, tuple(tensor.shape.numpy()), digests[id(tensor)]), []).append(value)
    return found


def _common_name(wanted: str, values: Sequence[Sequence[ir.Value]], names: Sequence[FreeNames], taken: Mapping[str, object]) -> str:
    """`wanted` where every graph calls one of these values so and no other weight is; a name that is free in all graphs otherwise."""
    if wanted not in taken and all(any(value.name == wanted for value in each) for each in values):
        return wanted
    name, count = f"{wanted}.shared", 1
    while any(each.new(name) != name for each in names) or name in taken:
        name, count = f"{wanted}.shared.{count}", count + 1
    return name


def _refer(graph: ir.Graph, values: Sequence[ir.Value], name: str, array: np.ndarray) -> None:
    """Replaces `values`, all of one content, by one initialiser called `name` that lies outside the graph."""
    first = values[0]
    assert first.const_value is not None
    dtype = first.const_value.dtype
    for value in values:
        graph.initializers.pop(value.name or "")
    outside = ir.ExternalTensor(_LOCATION, None, None, dtype, shape=ir.Shape(array.shape), name=name)
    weight = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=outside)
    graph.register_initializer(weight)
    for value in values:
        ir.convenience.replace_all_uses_with(value, weight)


def _array(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return np.ascontiguousarray(value.const_value.numpy())
