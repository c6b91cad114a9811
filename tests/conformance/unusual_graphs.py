"""Valid ONNX graphs whose outputs are not direct outputs of one node: hard cases for optimisers, allocators and bound memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import Array
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from tests.fakes.onnx_models import ONNX_TYPES, model, value

#: Rows of the batched graphs, and of a compiled executable.
MOST_ROWS = 4
#: Elements of a row that take more than the 64 KiB from which backend openvino hands memory over instead of copying it.
LARGE = 20_000

_DATATYPES = {number: datatype for datatype, number in ONNX_TYPES.items()}
make = helper.make_node


@dataclass(frozen=True, slots=True)
class UnusualGraph:
    """A graph with its signature.

    Attributes:
        name: What is unusual about it.
        proto: The file.
        signature: What is served: everything the graph declares; tensors are `[rows, ...]` where `max_batch_size` is not 0.
    """

    name: str
    proto: onnx.ModelProto
    signature: ModelSignature

    def inputs(self, rows: int, seed: int) -> dict[str, Array]:
        """Values from -50 to 49 (of BYTES and BOOL as text and bits), `rows` of them where the graph is batched."""
        rng = np.random.default_rng(seed)
        batch = (rows,) if self.signature.is_batched else ()
        return {spec.name: _values(spec.datatype, (*batch, *spec.dims), rng) for spec in self.signature.inputs}


def _values(datatype: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    numbers: Array = np.asarray(rng.integers(-50, 50, size=shape))
    if datatype is DataType.BYTES:
        return np.array([str(number).encode() for number in numbers.flat], np.object_).reshape(shape)
    if datatype is DataType.BF16:
        # Whole numbers of this size are exact in bfloat16, which is the upper half of a float32.
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(numbers % 2 == 0) if datatype is DataType.BOOL else numbers.astype(datatype.numpy)


def _rows(name: str, size: int = 4, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return value(name, ("n", size), kind)


def _constant(name: str, shape: tuple[int, ...] = (2, 4), fill: float = 7) -> TensorProto:
    return numpy_helper.from_array(np.full(shape, fill, np.float32), name)


def _numbers(name: str, *numbers: int) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def _specs(values: Sequence[ValueInfoProto], lead: int) -> tuple[TensorSpec, ...]:
    specs: dict[str, TensorSpec] = {}
    for each in values:
        tensor = each.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
        specs.setdefault(each.name, TensorSpec(each.name, _DATATYPES[tensor.elem_type], dims[lead:]))
    return tuple(specs.values())


def _graph(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    max_batch_size: int = MOST_ROWS,
) -> UnusualGraph:
    proto = model(nodes, inputs, outputs, initializers, opset=18, ir_version=9)
    lead = 1 if max_batch_size else 0
    held = {tensor.name for tensor in initializers}
    served = _specs([each for each in inputs if each.name not in held], lead)
    return UnusualGraph(name, proto, ModelSignature(served, _specs(outputs, lead), max_batch_size))


def _branches(then: str, otherwise: str) -> dict[str, Any]:
    return {
        f"{side}_branch": helper.make_graph([make(operator, ["x"], [f"{side}_y"])], side, [], [_rows(f"{side}_y")])
        for side, operator in (("then", then), ("else", otherwise))
    }


def _loop_body(state_out: str, nodes: Sequence[NodeProto] = ()) -> onnx.GraphProto:
    inputs = [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), _rows("state")]
    outputs = [value("go_on", (), TensorProto.BOOL), _rows(state_out)]
    return helper.make_graph([make("Identity", ["go"], ["go_on"]), *nodes], "body", inputs, outputs)


X = _rows("x")
FIXED = value("x", (2, 4))


def _aliases() -> list[UnusualGraph]:
    """Outputs that share their memory with an input or with each other, before or after optimisation."""
    relu = make("Relu", ["x"], ["z"])
    return [
        _graph("input is output", [relu], [X], [X, _rows("z")]),
        _graph("input is output, listed last", [relu], [X], [_rows("z"), X]),
        _graph("input is the only output", [], [X], [X]),
        _graph("input is output, unbatched", [relu], [FIXED], [FIXED, value("z", (2, 4))], max_batch_size=0),
        _graph("identity", [make("Identity", ["x"], ["y"])], [X], [_rows("y")]),
        _graph("identity twice", [make("Identity", ["x"], [name]) for name in ("y", "z")], [X], [_rows("y"), _rows("z")]),
        _graph("identity of an identity", [make("Identity", ["x"], ["y"]), make("Identity", ["y"], ["z"])], [X], [_rows("y"), _rows("z")]),
        _graph("identity of an output", [relu, make("Identity", ["z"], ["y"])], [X], [_rows("y"), _rows("z")]),
        *_large_aliases(),
        _graph("output is an intermediate", [relu, make("Neg", ["z"], ["y"])], [X], [_rows("y"), _rows("z")]),
        _graph("equal nodes", [make("Relu", ["x"], [name]) for name in ("y", "z")], [X], [_rows("y"), _rows("z")]),
        _graph("output listed twice", [relu], [X], [_rows("z"), _rows("z")]),
        _graph("cast to the same type", [make("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], [X], [_rows("y")]),
        _graph("transpose that keeps the order", [make("Transpose", ["x"], ["y"], perm=[0, 1])], [X], [_rows("y")]),
        _graph("reshape to the same shape", [make("Reshape", ["x", "to"], ["y"])], [X], [_rows("y")], [_numbers("to", -1, 4)]),
        _graph(
            "unsqueezed and squeezed",
            [make("Unsqueeze", ["x", "axis"], ["wide"]), make("Squeeze", ["wide", "axis"], ["y"])],
            [X],
            [_rows("y")],
            [_numbers("axis", 1)],
        ),
    ]


def _large_aliases() -> list[UnusualGraph]:
    x, y, z = (_rows(name, LARGE) for name in "xyz")
    relu = make("Relu", ["x"], ["z"])
    return [
        _graph("large input is output", [relu], [x], [x, z]),
        _graph("large identity", [make("Identity", ["x"], ["y"])], [x], [y]),
        _graph("large identity twice", [make("Identity", ["x"], [name]) for name in ("y", "z")], [x], [y, z]),
        _graph("large identity of an output", [relu, make("Identity", ["z"], ["y"])], [x], [y, z]),
        _graph("large output is an intermediate", [relu, make("Neg", ["z"], ["y"])], [x], [y, z]),
        _graph("large equal nodes", [make("Relu", ["x"], [name]) for name in ("y", "z")], [x], [y, z]),
    ]


def _constants() -> list[UnusualGraph]:
    """Outputs that no input has a part in."""
    relu = make("Relu", ["x"], ["z"])
    made = [value("c", (2, 4)), value("z", (2, 4))]
    fixed = [
        ("initializer is output", [relu], [FIXED], made, [_constant("c")]),
        ("initializer is the only output", [relu], [FIXED], [value("c", (2, 4))], [_constant("c")]),
        ("initializer with a default is output", [make("Add", ["x", "c"], ["z"])], [FIXED, value("c", (2, 4))], made, [_constant("c")]),
        ("constant is output", [make("Constant", [], ["c"], value=_constant("v")), relu], [FIXED], made, []),
        ("folded constant is output", [make("Add", ["a", "a"], ["c"]), relu], [FIXED], made, [_constant("a")]),
    ]
    large = (1, LARGE)
    return [
        *(_graph(*parts, max_batch_size=0) for parts in fixed),
        _graph(
            "large initializer is output",
            [relu],
            [value("x", large)],
            [value("c", large), value("z", large)],
            [_constant("c", large)],
            max_batch_size=0,
        ),
        _graph(
            "constant of the batch's shape",
            [make("Shape", ["x"], ["shape"]), make("Expand", ["seven", "shape"], ["y"])],
            [X],
            [_rows("y")],
            [_constant("seven", (1, 1))],
        ),
        _graph("input that nothing reads", [make("Relu", ["x"], ["z"])], [X, _rows("w")], [_rows("z")]),
    ]


def _optional() -> list[UnusualGraph]:
    """Outputs that are omitted by nodes or computed in a sub-graph."""
    boolean = value("is_true", (), TensorProto.BOOL)
    yes = numpy_helper.from_array(np.array(True), "yes")
    held = helper.make_graph([], "held", [], [value("then_y", (2, 4))], [_constant("then_y")])
    other = helper.make_graph([make("Relu", ["x"], ["else_y"])], "other", [], [value("else_y", (2, 4))])
    step = make("Relu", ["state"], ["next"])
    sequence, state = value("s", (3, 2, 4)), value("last", (1, 2, 2))
    topk: dict[str, Any] = {"axis": 1, "largest": 1, "sorted": 1}
    return [
        _graph("mask of a dropout", [make("Dropout", ["x"], ["y", "m"])], [X], [_rows("y"), _rows("m", 4, TensorProto.BOOL)]),
        _graph("dropout without a mask", [make("Dropout", ["x"], ["y"])], [X], [_rows("y")]),
        _graph(
            "first output left out",
            [make("LSTM", ["s", "w", "r"], ["", "last"], hidden_size=2)],
            [sequence],
            [state],
            [_constant("w", (1, 8, 4), 0.25), _constant("r", (1, 8, 2), 0.5)],
            0,
        ),
        _graph("output that nothing reads", [make("TopK", ["x", "k"], ["v", "i"], **topk)], [X], [_rows("v", 2)], [_numbers("k", 2)]),
        _graph("branch known beforehand", [make("If", ["yes"], ["y"], **_branches("Identity", "Relu"))], [X], [_rows("y")], [yes]),
        _graph(
            "branch that an input chooses",
            [make("If", ["is_true"], ["y"], **_branches("Identity", "Relu"))],
            [value("x", (2, 4)), boolean],
            [value("y", (2, 4))],
            max_batch_size=0,
        ),
        _graph(
            "branch that is an initializer",
            [make("If", ["is_true"], ["y"], then_branch=held, else_branch=other)],
            [FIXED, boolean],
            [value("y", (2, 4))],
            max_batch_size=0,
        ),
        _graph(
            "loop that hands its state on",
            [make("Loop", ["n", "", "x"], ["y"], body=_loop_body("state"))],
            [X],
            [_rows("y")],
            [_numbers("n", 2)],
        ),
        _graph(
            "loop of no turns",
            [make("Loop", ["n", "", "x"], ["y"], body=_loop_body("next", [step]))],
            [X],
            [_rows("y")],
            [_numbers("n", 0)],
        ),
        _graph(
            "element of a sequence",
            [make("SequenceConstruct", ["x", "x"], ["all"]), make("SequenceAt", ["all", "place"], ["y"])],
            [X],
            [_rows("y")],
            [numpy_helper.from_array(np.array(1, np.int64), "place")],
        ),
        _graph("value of an optional", [make("Optional", ["x"], ["o"]), make("OptionalGetElement", ["o"], ["y"])], [X], [_rows("y")]),
    ]


def _sizes_and_types() -> list[UnusualGraph]:
    """No elements, no dimensions, sizes that follow from the values, and types that numpy or C++ treat in their own way."""
    relu = make("Relu", ["x"], ["z"])
    bounds = [_numbers("from", 0), _numbers("to", 0), _numbers("axis", 1)]
    typed = []
    for datatype in (DataType.BOOL, DataType.INT8, DataType.INT64, DataType.FP16, DataType.FP64, DataType.BF16, DataType.BYTES):
        given = _rows("x", 4, ONNX_TYPES[datatype])
        node = make("Identity", ["x"], ["z"])
        typed.append(_graph(f"{datatype.value} input is output", [node], [given], [given, _rows("z", 4, ONNX_TYPES[datatype])]))
    return [
        *typed,
        _graph(
            "input is output beside bfloat16",
            [make("Cast", ["x"], ["z"], to=TensorProto.BFLOAT16)],
            [X],
            [X, _rows("z", 4, TensorProto.BFLOAT16)],
        ),
        _graph("no elements, input is output", [relu], [_rows("x", 0)], [_rows("x", 0), _rows("z", 0)]),
        _graph("slice of no elements", [make("Slice", ["x", "from", "to", "axis"], ["y"]), relu], [X], [_rows("y", 0), _rows("z")], bounds),
        _graph(
            "initializer of no elements",
            [relu],
            [FIXED],
            [value("c", (0, 4)), value("z", (2, 4))],
            [_constant("c", (0, 4))],
            max_batch_size=0,
        ),
        _graph("scalar output", [make("ReduceSum", ["x"], ["y"], keepdims=0)], [FIXED], [value("y", ())], max_batch_size=0),
        _graph("scalar input is output", [make("Neg", ["x"], ["y"])], [value("x", ())], [value("x", ()), value("y", ())], max_batch_size=0),
        _graph(
            "size that follows from the values",
            [make("NonZero", ["x"], ["y"])],
            [FIXED],
            [value("y", (2, "found"), TensorProto.INT64)],
            max_batch_size=0,
        ),
    ]


_PARTS: tuple[Callable[[], list[UnusualGraph]], ...] = (_aliases, _constants, _optional, _sizes_and_types)
UNUSUAL_GRAPHS: dict[str, UnusualGraph] = {graph.name: graph for part in _PARTS for graph in part()}


def raw_outputs(graph: UnusualGraph, inputs: Arrays) -> dict[str, Array]:
    """The result of ONNX Runtime, with values copied from its own memory."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(graph.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in graph.signature.outputs]
    if not any(spec.datatype is DataType.BF16 for spec in (*graph.signature.inputs, *graph.signature.outputs)):
        found = session.run(names, {name: _as_text(array) for name, array in inputs.items()})
        return {name: _as_bytes(np.asarray(array)) for name, array in zip(names, found, strict=True)}
    bfloat16 = 16
    feeds = {
        spec.name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(inputs[spec.name], bfloat16)
        if spec.datatype is DataType.BF16
        else ort.OrtValue.ortvalue_from_numpy(inputs[spec.name])
        for spec in graph.signature.inputs
    }
    # Whole numbers below 256 are exact in both: Cast to bfloat16 keeps the upper half of the float.
    return {
        name: (inputs["x"] if inputs["x"].dtype == np.uint16 else (inputs["x"].view(np.uint32) >> 16).astype(np.uint16))
        if value.element_type() == bfloat16
        else value.numpy().copy()
        for name, value in zip(names, session.run_with_ort_values(names, feeds), strict=True)
    }


def _as_text(array: np.ndarray) -> np.ndarray:
    return np.array([each.decode() for each in array.flat], object).reshape(array.shape) if array.dtype == object else array


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.array([each.encode() for each in array.flat], object).reshape(array.shape) if array.dtype == object else array
