"""Number types: INT64 constants as INT32, FLOAT constants as FLOAT16, and bfloat16 inputs and outputs as numpy holds them, in float32.

INT64 constants are clipped where that changes nothing, or nothing that matters, and rejected where it does. FLOAT constants are clipped to
what FLOAT16 holds, and tiny ones that keep a divisor from zero stay above it.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper

from stoker.compiler.errors import CompileError
from stoker.compiler.target import fed_inputs

_BFLOAT16, _FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT


def with_numpy_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` itself, or a copy that takes and gives FLOAT, under the same names, where `model` has BFLOAT16. Every value is the same."""
    inputs = [value.name for value in fed_inputs(model) if value.type.tensor_type.elem_type == _BFLOAT16]
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
    """Renames values in all nodes and initializers, sub-graphs included: in ONNX, no inner value has the name of an outer one."""
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


log = logging.getLogger(__name__)

_LEAST: Final = int(np.iinfo(np.int32).min)
_LARGEST: Final = int(np.iinfo(np.int32).max)

#: Inputs where a number beyond INT32 only means "to the end": no dimension is as long.
_BOUNDS = {("Slice", 1), ("Slice", 2)}
#: Operators that compare or select; a clipped bound still lies beyond every INT32 value, but for the two ends of the range themselves.
_COMPARISONS = frozenset({"Clip", "Min", "Max", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Where"})


def to_int32(value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[np.int32]:
    """The constant `value` for `readers` in INT32.

    Raises:
        CompileError: it is out of range, and for some reader that would change the result.
    """
    assert value.const_value is not None
    array: NDArray[Any] = value.const_value.numpy()
    beyond = (array < _LEAST) | (array > _LARGEST)
    if not np.any(beyond):
        return array.astype(np.int32)
    for node, index in readers:
        if (node.op_type, index) in _BOUNDS:
            continue
        first = int(array[beyond].reshape(-1)[0])
        where = f"constant '{value.name}', read by node '{node.name}' ({node.op_type}), holds {first}"
        if node.op_type not in _COMPARISONS:
            raise CompileError(f"{where}, which does not fit INT32; the device has no INT64")
        log.warning("%s; it is clipped to INT32", where)
    clipped: NDArray[np.int32] = np.clip(array, _LEAST, _LARGEST).astype(np.int32)
    return clipped


log = logging.getLogger(__name__)

#: PopRT's bound; float16 itself ends at 65504.
HALF_LIMIT: Final = 65500.0
#: What a tiny epsilon is lifted to [PopRT]: the smallest float16 above zero is 6e-8.
HALF_EPSILON: Final = 1e-7
#: How many names a message lists.
_LISTED = 5


class HalfConstants:
    """Converts constants, and remembers which had to be changed. Its instances are what `Retyping.convert` wants.

    Attributes:
        clipped: Names of tensors with values beyond `HALF_LIMIT`, infinities among them.
        lifted: Names of tensors, or of nodes with an `epsilon`, whose values were below `HALF_EPSILON`.
    """

    def __init__(self) -> None:
        self.clipped: list[str] = []
        self.lifted: list[str] = []

    def __call__(self, value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[Any]:
        assert value.const_value is not None
        return self.convert(value.const_value.numpy(), value.name or "")

    def convert(self, array: NDArray[Any], name: str) -> NDArray[np.float16]:
        """`array` as float16. NaN stays. Only a tensor without one larger value is lifted: weights near zero may become zero."""
        magnitude = np.abs(array)
        if np.any(magnitude > HALF_LIMIT):
            self.clipped.append(name)
            array = np.clip(array, -HALF_LIMIT, HALF_LIMIT)
        elif array.size and np.all(magnitude < HALF_EPSILON) and np.any(magnitude > 0):
            self.lifted.append(name)
            array = np.where(magnitude > 0, np.copysign(HALF_EPSILON, array), array)
        return array.astype(np.float16)

    def lift_epsilon(self, node: ir.Node) -> bool:
        """Lifts the attribute `epsilon` of a normalisation; returns whether it was too small."""
        attribute = node.attributes.get("epsilon")
        if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.FLOAT:
            return False
        if not 0 < attribute.as_float() < HALF_EPSILON:
            return False
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", HALF_EPSILON)
        self.lifted.append(node.name or node.outputs[0].name or node.op_type)
        return True

    def report(self) -> None:
        """Logs one line for what was clipped, a warning, and one for what was lifted."""
        if self.clipped:
            log.warning("%d constant(s) clipped to +-%g for FLOAT16: %s", len(self.clipped), HALF_LIMIT, _listed(self.clipped))
        if self.lifted:
            log.warning("%d epsilon(s) below %g lifted to it for FLOAT16: %s", len(self.lifted), HALF_EPSILON, _listed(self.lifted))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:_LISTED]) + more
