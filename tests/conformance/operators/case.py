"""One model with inputs and the outputs that are expected of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

Arrays = Mapping[str, NDArray[Any]]
#: The newest opset that the installed ONNX Runtime reads completely.
RUNTIME_OPSET = 26
#: From here on, initializers are no graph inputs.
_IR_VERSION = 4
#: Their outputs are drawn at random: only shape and element type can be compared.
RANDOM_OPERATORS = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_TOLERANCES = {"float16": 4e-3, "bfloat16": 2e-2}


class NoReference(Exception):
    """Neither ONNX Runtime nor ONNX's reference evaluator runs the model."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model to compile.

    Attributes:
        name: Unique within its part.
        part: `nodes`, `opsets` or `zoo`.
        operator: The operator that is tested; of a network its name.
        model: The model.
        feeds: Its inputs by name.
        expected: Its outputs in their order.
        parameters: Names of the inputs that exporters write as constants (axes, shapes, sizes).
    """

    name: str
    part: str
    operator: str
    model: onnx.ModelProto
    feeds: Arrays
    expected: Sequence[NDArray[Any]]
    parameters: Sequence[str] = ()

    @property
    def opset(self) -> int:
        return max((each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx")), default=0)

    @property
    def is_random(self) -> bool:
        return self.operator in RANDOM_OPERATORS or any(
            node.op_type in RANDOM_OPERATORS or (node.op_type == "Dropout" and len(node.input) > 2) for node in self.model.graph.node
        )

    def with_constants(self) -> "Case":
        """The same model with `parameters` as initializers."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.ir_version = max(model.ir_version, _IR_VERSION)
        kept = [each for each in model.graph.input if each.name not in self.parameters]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(self.feeds[name], name) for name in self.parameters)
        feeds = {name: array for name, array in self.feeds.items() if name not in self.parameters}
        return Case(self.name, self.part, self.operator, model, feeds, self.expected)

    def in_one_row(self) -> "Case":
        """The same model with a further dimension of size 1 before those of each input and output."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.ir_version = max(model.ir_version, _IR_VERSION)
        before, after = [], []
        feeds = dict(self.feeds)
        expected = [np.asarray(each)[None] for each in self.expected]
        for value in model.graph.input:
            if value.name not in feeds:
                continue
            inner, shape = f"{value.name}/inner", feeds[value.name].shape
            _rename(model.graph, value.name, inner)
            before.append(_reshape(model.graph, value.name, inner, shape))
            feeds[value.name] = feeds[value.name][None]
            _declare(value, (1, *shape))
        for at, value in enumerate(model.graph.output):
            inner = f"{value.name}/inner"
            _rename(model.graph, value.name, inner)
            after.append(_reshape(model.graph, inner, value.name, expected[at].shape))
            _declare(value, expected[at].shape)
        nodes = [*before, *model.graph.node, *after]
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(nodes)
        return Case(self.name, self.part, self.operator, model, feeds, expected)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Renames a value in all nodes, also in those of sub-graphs, which read outer values."""
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == old:
                    names[at] = new
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, old, new)


def _reshape(graph: onnx.GraphProto, source: str, made: str, shape: Sequence[int]) -> onnx.NodeProto:
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape, np.int64), f"{made}/shape"))
    return onnx.helper.make_node("Reshape", [source, f"{made}/shape"], [made])


def _declare(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    del value.type.tensor_type.shape.dim[:]
    for size in shape:
        value.type.tensor_type.shape.dim.add().dim_value = size


def runtime_outputs(model: onnx.ModelProto, feeds: Arrays) -> list[NDArray[Any]]:
    """Returns what ONNX Runtime computes without optimisations; raises its exceptions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, dict(feeds))]


def reference_outputs(model: onnx.ModelProto, feeds: Arrays) -> list[NDArray[Any]]:
    """Returns what ONNX Runtime computes, or ONNX's reference evaluator where ONNX Runtime rejects the model.

    Raises:
        NoReference: both reject it.
    """
    try:
        return runtime_outputs(model, feeds)
    except Exception as first:
        try:
            return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, dict(feeds))]
        except Exception as second:
            raise NoReference(f"{first}; {second}") from second


def difference(found: NDArray[Any], wanted: NDArray[Any], *, is_random: bool = False) -> str:
    """Returns how `found` differs from `wanted`; empty if it does not. Element types are compared by their kind only."""
    wanted = np.asarray(wanted)
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)} instead of {list(wanted.shape)}"
    if is_random:
        return ""
    if wanted.dtype.kind in "OUS" or found.dtype.kind in "OUS":
        return "" if _texts(found) == _texts(wanted) else "other texts"
    tolerance = max(_TOLERANCES.get(each.dtype.name, 1e-3) for each in (found, wanted))
    with np.errstate(all="ignore"):
        mine, theirs = found.astype(np.complex128), wanted.astype(np.complex128)
        if wanted.dtype.kind in "iub":
            count = int(np.sum(mine != theirs))
            return f"{count} of {wanted.size} elements differ" if count else ""
        largest = float(np.max(np.abs(theirs), initial=0.0, where=np.isfinite(theirs)))
        if np.allclose(mine, theirs, rtol=tolerance, atol=tolerance / 100 * max(largest, 1.0), equal_nan=True):
            return ""
        return f"differs by {np.nanmax(np.abs(mine - theirs)):.3g}, largest value {np.nanmax(np.abs(theirs)):.3g}"


def _texts(array: NDArray[Any]) -> list[bytes]:
    return [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
