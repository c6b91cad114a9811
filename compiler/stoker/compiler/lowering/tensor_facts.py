"""What planning knows of tensors and operators before it runs any: sizes, which values are constant, which operators compute nothing."""

import math
from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.errors import CompileError


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape (all static), bits an element as the device stores it, and whether it is known at compile time."""

    shape: tuple[int, ...]
    bits: int
    is_constant: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def byte_count(self) -> int:
        return (self.elements * self.bits + 7) // 8

    @property
    def element_bytes(self) -> float:
        return self.bits / 8


def tensor_facts(value: ir.Value, where: str) -> TensorFacts:
    """Facts of `value`.

    Raises:
        CompileError: its shape or dtype is unknown; `where` says at which node.
    """
    constant = value.const_value
    shape = value.shape if constant is None else constant.shape
    dtype = value.dtype if constant is None else constant.dtype
    if shape is None or dtype is None:
        raise CompileError(f"{where}: tensor '{value.name}' has no static shape or no dtype; the device needs both")
    dims = tuple(shape)
    if not all(isinstance(dim, int) for dim in dims):
        raise CompileError(f"{where}: tensor '{value.name}' has shape {shape}; every dimension must be fixed for the device")
    bits = 8 if dtype == ir.DataType.BOOL else round(dtype.itemsize * 8)
    return TensorFacts(tuple(int(dim) for dim in dims), bits, value.const_value is not None)  # type: ignore[arg-type]


def node_label(node: ir.Node) -> str:
    """How errors and plans call `node`: its name, else its first output's."""
    if node.name:
        return node.name
    return next((output.name for output in node.outputs if output.name), node.op_type)


#: Operators whose result is another each time, depends on more than their inputs, or, for weights in eight bits, is decoded on the device.
_NEVER = frozenset(
    [
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("If", "Loop", "Scan"),
        "DequantizeLinear",
    ]
)


def static_values(model: ir.Model) -> frozenset[ir.Value]:
    """Values of `model`, sub-graphs included, that need no input of the model to be computed."""
    known: set[ir.Value] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        given = set(graph.inputs) if graph is model.graph else set()
        known.update(value for value in graph.initializers.values() if value not in given)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _NEVER:
            continue
        if (node.op_type in ("Shape", "Size") and node.inputs and _is_static(node.inputs[0])) or all(
            value is None or value in known for value in node.inputs
        ):
            known.update(node.outputs)
    return frozenset(known)


def _is_static(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.is_static()


"""Operators that compute nothing, which hold on any device."""


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


#: Operators that only move, choose or repeat elements, or change nothing but signs: what they give is among what they got.
MOVING = words(
    """Abs Clip Compress Concat ConstantOfShape DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND GlobalMaxPool Hardmax
    Identity If Loop Max MaxPool MaxUnpool Min Neg OneHot Pad ReduceMax ReduceMin Relu Reshape ReverseSequence Scan Scatter ScatterElements
    ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where"""
)
