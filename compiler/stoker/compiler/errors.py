"""Errors of the compiler. Every error names the node, operator or tensor and the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class CompileError(Exception):
    """A model cannot be converted or compiled, or an option cannot be honoured."""


class OptionError(CompileError):
    """An option, key or value is unknown or contradicts another."""


class GateError(CompileError):
    """The compiled model is less accurate or slower than the command requires; it was not written."""


class CheckError(CompileError):
    """Outputs of the converted model differ more from the source's than the precision explains; the model was not written."""


class NotComparableError(CompileError):
    """A converted model cannot be compared with its source: one of them does not run here, or they do not take the same data."""


class ShapeError(CompileError):
    """A dimension that must be fixed is variable, or has two different sizes."""


class NotStaticError(ShapeError):
    """The outputs of a converted model have no static shape; `model` is that model, so that a target can check its operators."""

    def __init__(self, message: str, model: "ir.Model") -> None:
        super().__init__(message)
        self.model = model


class PassError(CompileError):
    """A pass was not found, cannot be ordered, or failed."""


class InvalidResultError(PassError):
    """ONNX finds a converted model invalid; `model` is that model, so that a target can check its operators."""

    def __init__(self, message: str, model: "ir.Model") -> None:
        super().__init__(message)
        self.model = model


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One operator that a target cannot run: the node, the operator (with its domain, if any) and the reason."""

    node: str
    op_type: str
    reason: str


class UnsupportedOperators(CompileError):
    """All operators of a model that a target cannot run."""

    def __init__(self, target: str, operators: Sequence[Unsupported]) -> None:
        lines = "\n".join(f"  {each.op_type} (node '{each.node}'): {each.reason}" for each in operators)
        super().__init__(f"{len(operators)} node(s) cannot be compiled for {target}:\n{lines}")
        self.operators = tuple(operators)
