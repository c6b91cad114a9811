"""What planning knows of a tensor. Frozen, so that equal tensors are equal."""

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
