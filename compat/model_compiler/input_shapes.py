"""Combines `input_shapes` with the model's own inputs: the sizes of one sample, and the batch if it is fixed.

Adlik's requests write shapes without the batch on some ways and with it on others. Both are accepted, distinguished by the rank that the
model declares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from model_compiler.kinds import InputShapes
from model_compiler.request import CompileRequest
from stoker.compiler.errors import OptionError, ShapeError

#: A dimension's size; None where it is variable.
Dim = int | None


@dataclass(frozen=True, slots=True)
class InputSizes:
    """The inputs of a model, after `input_shapes`.

    Attributes:
        sizes: By name in the model's order: one sample's, without dimension 0.
        model_batch: Dimension 0 where the model fixes it.
        requested_batch: Dimension 0 where `input_shapes` says it.
    """

    sizes: Mapping[str, tuple[Dim, ...]]
    model_batch: int | None
    requested_batch: int | None

    def of_batch(self, batch: int) -> dict[str, tuple[int, ...]]:
        """All shapes with this batch.

        Raises:
            ShapeError: a dimension is variable still; all of them are named.
        """
        variable = [
            f"input '{name}' dimension {axis}" for name, sizes in self.sizes.items() for axis, size in enumerate(sizes, 1) if size is None
        ]
        if variable:
            raise ShapeError(f"the device takes static shapes only: give input_shapes, which fix {'; '.join(variable)}")
        return {name: (batch, *(size for size in sizes if size is not None)) for name, sizes in self.sizes.items()}


def fed_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs that a caller must feed: those without an initialiser."""
    given = {each.name for each in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def input_sizes(model: onnx.ModelProto, request: CompileRequest) -> InputSizes:
    """The sizes of the inputs of `model`.

    Raises:
        OptionError: `input_shapes` names inputs that do not exist, or gives too few or too many.
        ShapeError: an input has no declared rank or no batch dimension, or a size contradicts the model or another input.
    """
    fed = fed_inputs(model)
    given = _by_name(request.input_shapes, [value.name for value in fed])
    sizes: dict[str, tuple[Dim, ...]] = {}
    of_model: dict[str, int] = {}
    requested: dict[str, int] = {}
    for value in fed:
        declared = _declared(value)
        shape = given.get(value.name, declared)
        whole: Sequence[Dim] = (None, *shape) if len(shape) == len(declared) - 1 else shape
        if len(whole) != len(declared):
            raise ShapeError(
                f"input_shapes: input '{value.name}' has {len(declared)} dimensions; expected that many sizes, or one fewer (without the "
                f"batch), got {list(shape)}"
            )
        for axis, (known, wanted) in enumerate(zip(declared, whole, strict=True)):
            if None not in (known, wanted) and known != wanted:
                raise ShapeError(f"input_shapes: input '{value.name}' dimension {axis} is {known} in the model and cannot be {wanted}")
        if declared[0] is not None:
            of_model[value.name] = declared[0]
        if whole[0] is not None:
            requested[value.name] = whole[0]
        sizes[value.name] = tuple(known if known is not None else wanted for known, wanted in zip(declared[1:], whole[1:], strict=True))
    return InputSizes(sizes, _one(of_model, "the model has"), _one(requested, "with input_shapes there are"))


def _declared(value: onnx.ValueInfoProto) -> tuple[Dim, ...]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ShapeError(f"input '{value.name}' has no declared shape; export the model with shapes")
    dims = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in tensor.shape.dim)
    if not dims:
        raise ShapeError(f"input '{value.name}' is a scalar, which no batch can be made of: every input needs the batch as dimension 0")
    return dims


def _by_name(shapes: InputShapes, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    listed = ", ".join(f"'{name}'" for name in names) or "none"
    if isinstance(shapes, Mapping):
        unknown = [f"'{name}'" for name in shapes if name not in names]
        if unknown:
            raise OptionError(f"input_shapes: the model has no input {', '.join(unknown)}; its inputs: {listed}")
        return shapes
    if shapes and len(shapes) != len(names):
        raise OptionError(f"input_shapes: {len(shapes)} shapes for {len(names)} inputs: {listed}")
    return dict(zip(names, shapes, strict=False))


def _one(batches: Mapping[str, int], who: str) -> int | None:
    if len(set(batches.values())) > 1:
        found = ", ".join(f"{size} for input '{name}'" for name, size in batches.items())
        raise ShapeError(f"dimension 0 is the batch and must be one for all inputs; {who} {found}")
    return next(iter(batches.values()), None)
