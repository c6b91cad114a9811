"""Sets sizes for a target that keeps free dimensions: given sizes are fixed, and all other dimensions stay variable.

The batch is dimension 0, if every input leaves it variable. A batch size option (`--batch_size N --batch_axis 0`, or the first number of an
`--input_shape`) is then the maximum number of rows, not a fixed size.
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

#: Sizes of open dimensions for random data: the first dimension, then the others.
RANDOM_ROWS: Final = 2
RANDOM_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The variable batch of a model before its dimensions get sizes.

    Attributes:
        shapes: The original shapes of all values that have one.
        names: The symbolic names of dimension 0 of the inputs, if any.
        inputs: The inputs whose dimension 0 is the batch; empty if the inputs share no variable batch.
    """

    shapes: dict[ir.Value, ir.Shape]
    names: frozenset[str]
    inputs: tuple[ir.Value, ...]

    @classmethod
    def of(cls, model: ir.Model) -> "OpenBatch":
        """Reads the variable batch of a model with only the source's dimension sizes."""
        inputs = tuple(fed_inputs(model).values())
        first = [value.shape[0] if value.shape is not None and len(value.shape) else 0 for value in inputs]
        if any(isinstance(dim, int) for dim in first):
            return cls({}, frozenset(), ())
        shapes = {value: value.shape for value in traverse_values(model) if value.shape is not None}
        return cls(shapes, frozenset(dim.value for dim in first if not isinstance(dim, int) and dim.value is not None), inputs)

    def reopen(self, options: ConversionOptions) -> None:
        """Makes the batch variable again after sizes were set, unless the options name another axis as the batch."""
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
    """Returns the batch size that the options set; None if they set none or several."""
    if options.batch_size is not None:
        return options.batch_size if options.batch_axis == 0 else None
    first = {shape[0] if shape else 0 for shape in options.input_shape.values()}
    only = first.pop() if len(first) == 1 else 0
    return only if only > 0 else None


def closed(
    model: onnx.ModelProto, data: Mapping[str, NDArray[Any]] | None = None, *, rows: int = RANDOM_ROWS, size: int = RANDOM_SIZE
) -> onnx.ModelProto:
    """Returns `model`, or a copy whose variable input dimensions get the sizes of `data` (None: `rows`, and `size` for all but the first).

    Raises:
        ShapeError: an array of `data` has neither as many dimensions as its input nor one more.
    """
    if all(dim.HasField("dim_value") for value in model.graph.input for dim in value.type.tensor_type.shape.dim):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = [rows, *[size] * len(dims)][: len(dims)]
        if data is not None and value.name in data:
            shape = data[value.name].shape
            if len(shape) not in (len(dims), len(dims) + 1):
                raise ShapeError(f"calibration data for input '{value.name}' has shape {list(shape)}; expected {len(dims)} dimensions")
            sizes = list(shape[len(shape) - len(dims) :])
        for dim, wanted in zip(dims, sizes, strict=True):
            if not dim.HasField("dim_value"):
                dim.dim_value = wanted
    return made
