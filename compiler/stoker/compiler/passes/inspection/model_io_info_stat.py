"""`model_io_info_stat`: what goes into a model and comes out of it, in one table."""

from dataclasses import dataclass
from math import prod

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.fixed_dimensions import fed_inputs
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class IoInfo:
    """One input or output.

    Attributes:
        name: Of the tensor.
        is_input: Whether it goes in.
        dtype: As ONNX names it; `?` if undeclared.
        shape: As declared, such as `[n,3]`; `?` if undeclared.
        bytes: Its size; None while a dimension is variable.
    """

    name: str
    is_input: bool
    dtype: str
    shape: str
    bytes: int | None

    @classmethod
    def of(cls, value: ir.Value, *, is_input: bool) -> "IoInfo":
        """The declaration of `value`."""
        shape = static_shape(value)
        dtype = value.dtype
        known = shape is not None and dtype is not None and dtype != ir.DataType.STRING
        return cls(
            name=str(value.name),
            is_input=is_input,
            dtype="?" if dtype is None else dtype.name,
            shape="?" if value.shape is None else str(value.shape),
            bytes=int(prod(shape) * dtype.itemsize) if known and shape is not None and dtype is not None else None,
        )


def io_info(model: ir.Model) -> list[IoInfo]:
    """Inputs that must be fed, then outputs, each in their order."""
    inputs = [IoInfo.of(value, is_input=True) for value in fed_inputs(model).values()]
    return inputs + [IoInfo.of(value, is_input=False) for value in model.graph.outputs]


@register("model_io_info_stat")
class ModelIoInfoStat(Pass):
    """Prints name, element type, shape and size of the inputs and outputs: what host IO costs, and what IO tiles must hold.

    Args:
        console: Where to print; standard output if None.

    Attributes:
        tensors: What it saw when it ran last.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self.tensors: list[IoInfo] = []

    def run(self, model: ir.Model) -> bool:
        self.tensors = io_info(model)
        table = Table("", "name", "type", "shape", title="inputs and outputs")
        table.add_column("bytes", justify="right")
        for is_input, kind in ((True, "input"), (False, "output")):
            sizes = [each.bytes for each in self.tensors if each.is_input == is_input]
            for each in self.tensors:
                if each.is_input == is_input:
                    table.add_row(kind, each.name, each.dtype, each.shape, "?" if each.bytes is None else f"{each.bytes:,}")
            total = None if None in sizes else sum(size for size in sizes if size is not None)
            table.add_row(f"all {kind}s", "", "", "", "?" if total is None else f"{total:,}", end_section=True)
        (self._console or Console()).print(table)
        return False
