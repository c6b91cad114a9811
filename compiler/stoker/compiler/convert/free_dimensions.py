"""Sizes for a target that keeps free dimensions: those given are fixed, all others stay open, and so does the batch up to its size.

The batch is dimension 0 where every input leaves it open. A size for it (`--batch_size N --batch_axis 0`, or the first number of an
`--input_shape`) says how many rows a batch may have, and not how many it must have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import ShapeError
from stoker.compiler.passes.edit import traverse_values
from stoker.compiler.passes.shape import fed_inputs

#: Sizes of open dimensions for random data: of the first, and of the others.
RANDOM_ROWS: Final = 2
RANDOM_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The open batch of a model before sizes are given to its dimensions.

    Attributes:
        shapes: Of every value with a shape, as they were.
        names: Of dimension 0 of the inputs, where they have one.
        inputs: Whose dimension 0 it is; empty where the inputs have no open batch in common.
    """

    shapes: dict[ir.Value, ir.Shape]
    names: frozenset[str]
    inputs: tuple[ir.Value, ...]

    @classmethod
    def of(cls, model: ir.Model) -> "OpenBatch":
        """Of a model whose dimensions have the sizes of the source only."""
        inputs = tuple(fed_inputs(model).values())
        first = [value.shape[0] if value.shape is not None and len(value.shape) else 0 for value in inputs]
        if any(isinstance(dim, int) for dim in first):
            return cls({}, frozenset(), ())
        shapes = {value: value.shape for value in traverse_values(model) if value.shape is not None}
        return cls(shapes, frozenset(dim.value for dim in first if not isinstance(dim, int) and dim.value is not None), inputs)

    def reopen(self, options: ConversionOptions) -> None:
        """Opens again what sizes closed, unless another axis was named as the batch's."""
        if options.batch_axis not in (None, 0):
            return
        for value, before in self.shapes.items():
            if value.shape is None or len(value.shape) != len(before):
                continue
            is_input = value in self.inputs
            value.shape = ir.Shape([
                old if (is_input and axis == 0) or (not isinstance(old, int) and old.value in self.names) else new
                for axis, (old, new) in enumerate(zip(before, value.shape, strict=True))
            ])  # fmt: skip


def requested_batch_size(options: ConversionOptions) -> int | None:
    """Rows of a batch as the options say it; None where they do not, or name several numbers."""
    if options.batch_size is not None:
        return options.batch_size if options.batch_axis == 0 else None
    first = {shape[0] if shape else 0 for shape in options.input_shape.values()}
    return first.pop() or None if len(first) == 1 else None


def closed(model: onnx.ModelProto, data: Mapping[str, NDArray[Any]] | None = None) -> onnx.ModelProto:
    """`model` itself, or, where inputs have open dimensions, a copy with those of `data`; of random data's sizes where that is None.

    Raises:
        ShapeError: an array of `data` has neither as many dimensions as its input nor one more.
    """
    if all(dim.HasField("dim_value") for value in model.graph.input for dim in value.type.tensor_type.shape.dim):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = [RANDOM_ROWS, *[RANDOM_SIZE] * len(dims)][: len(dims)]
        if data is not None and value.name in data:
            shape = data[value.name].shape
            if len(shape) not in (len(dims), len(dims) + 1):
                raise ShapeError(f"calibration data for input '{value.name}' has shape {list(shape)}; expected {len(dims)} dimensions")
            sizes = list(shape[len(shape) - len(dims) :])
        for dim, size in zip(dims, sizes, strict=True):
            if not dim.HasField("dim_value"):
                dim.dim_value = size
    return made
