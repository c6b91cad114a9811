"""Static shapes: what a device needs of every input, and the error that lists all that is missing at once."""

import onnx_ir as ir

from compiler.errors import ShapeError


def require_static(model: ir.Model) -> None:
    """Refuses a model whose inputs still have variable dimensions.

    Raises:
        ShapeError: with every input concerned, its shape, and what to give.
    """
    variable = [value for value in fed_inputs(model) if value.shape is None or not _is_fixed(value.shape)]
    if not variable:
        return
    lines = "\n".join(f"  {value.name}: {_shown(value.shape)}" for value in variable)
    given = " ".join(f"{value.name}={_asked(value.shape)}" for value in variable)
    raise ShapeError(
        f"{len(variable)} input(s) have dimensions that are not fixed, and devices need static shapes:\n{lines}\n"
        f"give them with --input_shape {given}, or with --batch_size and --batch_axis where only the batch is open"
    )


def fed_inputs(model: ir.Model) -> list[ir.Value]:
    """Inputs that a caller feeds: those that no initialiser gives a value."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def _is_fixed(shape: ir.Shape) -> bool:
    return all(isinstance(size, int) and size > 0 for size in shape)


def _shown(shape: ir.Shape | None) -> str:
    if shape is None:
        return "no shape at all"
    return "[" + ", ".join(str(size) if isinstance(size, int) else str(size.value or "?") for size in shape) + "]"


def _asked(shape: ir.Shape | None) -> str:
    return "..." if shape is None else ",".join(str(size) if isinstance(size, int) and size > 0 else "N" for size in shape)
