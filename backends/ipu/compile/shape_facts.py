"""What the planner knows of a node: shapes, dtypes, constants, where it is sharded to. Frozen, so that equal nodes are planned once."""

import math
from dataclasses import dataclass

import onnx_ir as ir

from compiler.errors import CompileError

IPU_KEY = "__ipu_number"
STAGE_KEY = "__pipeline_stage"


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
        raise CompileError(f"{where}: tensor '{value.name}' has no static shape or no dtype; the IPU needs both")
    dims = tuple(shape)
    if not all(isinstance(dim, int) for dim in dims):
        raise CompileError(f"{where}: tensor '{value.name}' has shape {shape}; every dimension must be fixed for the IPU")
    bits = 8 if dtype == ir.DataType.BOOL else round(dtype.itemsize * 8)
    return TensorFacts(tuple(int(dim) for dim in dims), bits, value.const_value is not None)  # type: ignore[arg-type]


def node_label(node: ir.Node) -> str:
    """How errors and the schedule call `node`: its name, else its first output's."""
    if node.name:
        return node.name
    return next((output.name for output in node.outputs if output.name), node.op_type)


def placement(node: ir.Node) -> tuple[int, int]:
    """The IPU and pipeline stage that `manual_sharding` gave the node; 0 and 0 where it gave none.

    Raises:
        CompileError: a value is no whole number.
    """
    found = []
    for key in (IPU_KEY, STAGE_KEY):
        attribute = node.attributes.get(key)
        text = node.metadata_props.get(key) if attribute is None else attribute.value
        try:
            found.append(int(text) if text is not None else 0)
        except (TypeError, ValueError):
            raise CompileError(f"node '{node_label(node)}': {key} is {text!r}, expected a whole number") from None
    return found[0], found[1]
