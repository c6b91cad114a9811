"""The errors of compiling. Every error names the node, operator or tensor it is about, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class CompileError(Exception):
    """A model that cannot be converted or compiled, or an option that cannot be honoured."""


class OptionError(CompileError):
    """An option, key or value that is unknown or contradicts another."""


class GateError(CompileError):
    """The compiled model is less accurate, or slower, than the command demands; nothing was written."""


class CheckError(CompileError):
    """`--check` compared, and the outputs are further from the source's than the precision explains; nothing was written."""


class ShapeError(CompileError):
    """A dimension that had to be fixed and was not, or that was given twice with different sizes."""


class NotStaticError(ShapeError):
    """A converted model whose outputs have no static shape; `model` is that model, for whoever can say more about its operators."""

    def __init__(self, message: str, model: "ir.Model") -> None:
        super().__init__(message)
        self.model = model


class PassError(CompileError):
    """A pass that could not be found, ordered or run."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One operator that a target cannot run: the node, its operator (with domain where it has one) and why."""

    node: str
    op_type: str
    reason: str


class UnsupportedOperators(CompileError):
    """All the operators of a model that a target cannot run, at once."""

    def __init__(self, target: str, operators: Sequence[Unsupported]) -> None:
        lines = "\n".join(f"  {each.op_type} (node '{each.node}'): {each.reason}" for each in operators)
        super().__init__(f"{len(operators)} node(s) cannot be compiled for {target}:\n{lines}")
        self.operators = tuple(operators)
