"""Small graphs that compute integers, one operator or chain each, for comparisons of executors. `x` is `[rows, 4]`, the output is `y`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.fakes.onnx_models import value

#: Element types and what numpy calls them.
INTEGERS: Mapping[int, type[np.integer]] = {
    TensorProto.INT64: np.int64, TensorProto.INT32: np.int32, TensorProto.INT16: np.int16, TensorProto.INT8: np.int8,
    TensorProto.UINT64: np.uint64, TensorProto.UINT32: np.uint32, TensorProto.UINT16: np.uint16, TensorProto.UINT8: np.uint8,
}  # fmt: skip
#: Neighbours of numbers that single precision holds, all within 31 bits.
_WIDE = (16777217, 1, 1000000011, -1000000011, 33554433, 100000001, 7, -3, 0, -16777219, 5, 123456789)

node = helper.make_node


@dataclass(frozen=True, slots=True)
class IntegerGraph:
    """A graph and an input for it.

    Attributes:
        name: The operators.
        kind: Element type of `x`.
        proto: The file.
        x: `[3, 4]`: values near the ends of a type of up to 16 bits, else `_WIDE`.
    """

    name: str
    kind: int
    proto: onnx.ModelProto
    x: NDArray[np.generic]


def graphs_of(kind: int) -> Iterator[IntegerGraph]:
    """All graphs for one element type; ONNX Runtime does not run each of them."""
    chains = _chains(kind) if np.iinfo(INTEGERS[kind]).bits >= 32 else ()
    for name, nodes, constants in (*_operators(kind), *chains):
        graph = helper.make_graph(
            list(nodes), "g", [value("x", ("n", 4), kind)], [helper.make_empty_tensor_value_info("y")], list(constants)
        )
        yield IntegerGraph(name, kind, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), _x(kind))


_Part = tuple[str, Sequence[NodeProto], Sequence[TensorProto]]


def _x(kind: int) -> NDArray[np.generic]:
    dtype = INTEGERS[kind]
    ends = np.iinfo(dtype)
    if ends.bits >= 32:
        numbers = [abs(number) if ends.min == 0 else number for number in _WIDE]
    else:
        numbers = [ends.max, ends.max - 7, 3, 0, ends.min, ends.min + 5, 100, 101, 7, 2, 90, 12]
    return np.array(numbers, dtype).reshape(3, 4)


def _operators(kind: int) -> Iterator[_Part]:
    bits = np.iinfo(INTEGERS[kind]).bits
    small, ones = _held("k", [[3, 7, 2, 5]], kind), _held("k", [[1, 1, 2, 1]], kind)
    other = _held("k", [[100, 7, 50, 90]], kind) if bits == 8 else small
    axis, first = _held("a", [1]), _held("a", 1)
    for operator in ("Add", "Sub", "Max", "Min", "Sum", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu"):
        yield operator, [node(operator, ["x", "k"], ["y"])], [other]
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mod"):
        yield operator, [node(operator, ["x", "k"], ["y"])], [small]
    for operator in ("Mul", "Pow"):
        yield (
            operator,
            [node(operator, ["x", "k"], ["y"])],
            [ones if bits >= 32 and operator == "Mul" else _held("k", [[1, 1, 1, 1]], kind)],
        )
    yield "Mul of 8 bits", [node("Mul", ["x", "k"], ["y"])], [other if bits == 8 else ones]
    yield "fmod", [node("Mod", ["x", "k"], ["y"], fmod=1)], [small]
    for direction in ("LEFT", "RIGHT"):
        yield f"BitShift {direction}", [node("BitShift", ["x", "k"], ["y"], direction=direction)], [_held("k", [[1, 0, 1, 0]], kind)]
    for operator in ("Abs", "Neg", "Sign", "Relu", "BitwiseNot", "Identity", "NonZero", "Trilu"):
        yield operator, [node(operator, ["x"], ["y"])], []
    limits = [_held("lo", 2, kind), _held("hi", 16777219 if bits >= 32 else 101, kind)]
    yield "Clip", [node("Clip", ["x", "lo", "hi"], ["y"])], limits
    for operator in ("Sum", "Max", "Min", "Mean", "L1", "SumSquare", "Prod", "L2", "LogSum"):
        yield f"Reduce{operator}", [node(f"Reduce{operator}", ["x", "a"], ["y"], keepdims=1)], [axis]
    yield "CumSum", [node("CumSum", ["x", "a"], ["y"])], [first]
    for operator in ("ArgMax", "ArgMin"):
        yield operator, [node(operator, ["x"], ["y"], axis=1)], []
    yield "TopK", [node("TopK", ["x", "k"], ["y", "i"], axis=1)], [_held("k", [4])]
    yield "Gather", [node("Gather", ["x", "i"], ["y"], axis=1)], [_held("i", [2, 0])]
    yield "ScatterND", [node("ScatterND", ["x", "i", "u"], ["y"])], [_held("i", [[0, 1], [2, 2]]), _held("u", [3, 4], kind)]
    yield "Concat", [node("Concat", ["x", "x"], ["y"], axis=1)], []
    yield "Slice to the end", [node("Slice", ["x", "b", "e", "a"], ["y"])], [_held("b", [1]), _held("e", [2**63 - 1]), axis]
    yield "Pad", [node("Pad", ["x", "p", "v"], ["y"])], [_held("p", [0, 1, 0, 1]), _held("v", 3, kind)]
    yield "Tile", [node("Tile", ["x", "p"], ["y"])], [_held("p", [1, 2])]
    yield "Transpose", [node("Transpose", ["x"], ["y"])], []
    yield "Where", [node("Greater", ["x", "k"], ["c"]), node("Where", ["c", "x", "k"], ["y"])], [small]
    for operator in ("MatMul", "Einsum"):
        options = {"equation": "ij,jk->ik"} if operator == "Einsum" else {}
        yield operator, [node(operator, ["x", "k"], ["y"], **options)], [_held("k", np.eye(4), kind)]
    for target in (*INTEGERS, TensorProto.BOOL, TensorProto.FLOAT):
        yield f"Cast {TensorProto.DataType.Name(target)}", [node("Cast", ["x"], ["y"], to=target)], []


def _chains(kind: int) -> Iterator[_Part]:
    """Operators that are exact alone, and may not be when they are computed together."""
    one, near = _held("one", [[1, 1, 1, 1]], kind), _held("near", [[16777218, 3, 1000000012, 16777219]], kind)
    places, axis = _held("i", [2, 0]), _held("a", 1)
    add, equal = node("Add", ["x", "one"], ["a1"]), node("Equal", ["x", "one"], ["c"])
    mask, mask_of_near = node("Cast", ["c"], ["m"], to=kind), node("Less", ["x", "near"], ["c"])
    for operator in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield f"Add, {operator}", [add, node(operator, ["a1", "near"], ["y"])], [one, near]
    for operator in ("Add", "Sub", "Max", "Min"):
        yield f"Equal, Cast, {operator}", [equal, mask, node(operator, ["x", "m"], ["y"])], [one]
        yield f"Less, Cast, {operator}", [mask_of_near, mask, node(operator, ["x", "m"], ["y"])], [near]
    yield "Equal, Where", [node("Equal", ["x", "near"], ["c"]), node("Where", ["c", "x", "one"], ["y"])], [near, one]
    yield "Add, Gather, Equal", [add, node("Gather", ["a1", "i"], ["g"], axis=1), node("Equal", ["g", "near"], ["y"])], [
        one, places, _held("near", [[1000000012, 16777218]], kind),
    ]  # fmt: skip
    yield "Equal, Not, Cast, CumSum, Mul, Add", [
        equal, node("Not", ["c"], ["d"]), node("Cast", ["d"], ["m"], to=kind), node("CumSum", ["m", "a"], ["s"]),
        node("Mul", ["s", "m"], ["p"]), node("Add", ["p", "one"], ["y"]),
    ], [one, axis]  # fmt: skip
    yield "Equal, Cast, ReduceSum", [equal, mask, node("ReduceSum", ["m", "axes"], ["y"])], [one, _held("axes", [1])]
    yield "Max, Min", [node("Max", ["x", "one"], ["l"]), node("Min", ["l", "near"], ["y"])], [one, near]
    yield "Sub, Neg, Mul, Add", [
        node("Sub", ["x", "one"], ["d"]), node("Neg", ["d"], ["e"]), node("Mul", ["e", "one"], ["f"]), node("Add", ["f", "one"], ["y"]),
    ], [one]  # fmt: skip
    laid_out = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["r"]), node("Mul", ["r", "two"], ["t"]),
        node("Concat", ["t", "two"], ["to"], axis=0), node("Reshape", ["x", "to"], ["y"]),
    ]  # fmt: skip
    yield "Shape, Gather, Mul, Concat, Reshape", laid_out, [_held("zero", [0]), _held("two", [2])]
    if kind == TensorProto.INT64:
        yield "Add beyond 32 bits", [node("Add", ["x", "far"], ["y"])], [_held("far", 2**40)]
        yield "constant beyond 32 bits", [node("Gather", ["far", "zero"], ["l"]), node("Max", ["l", "x"], ["y"])], [
            _held("far", [2**40]), _held("zero", 0),
        ]  # fmt: skip


def _held(name: str, numbers: object, kind: int = TensorProto.INT64) -> TensorProto:
    return numpy_helper.from_array(np.asarray(numbers).astype(INTEGERS[kind]), name)
