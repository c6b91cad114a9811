"""Passes that set fixed input shapes, infer shapes, and fold computations of constants and shapes."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.option_fields import OPEN
from stoker.compiler.passes.edit import input_at, new_constant, static_shape, traverse_values
from stoker.compiler.passes.registry import Pass, model_pass, node_pass, register
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import fold_constants


def fed_inputs(model: ir.Model) -> dict[str, ir.Value]:
    """Returns the inputs without initialiser, which callers must feed, by name in graph order."""
    return {str(value.name): value for value in model.graph.inputs if not value.is_initializer()}


def require_static_inputs(model: ir.Model) -> None:
    """Raises:
    ShapeError: some dimensions of inputs are still variable; the text lists all of them.
    """
    missing = []
    for name, value in fed_inputs(model).items():
        if value.shape is None:
            missing.append(f"input '{name}' has no declared shape")
            continue
        for axis, dim in enumerate(value.shape):
            if not isinstance(dim, int):
                missing.append(f"input '{name}' dimension {axis}" + (f" ('{dim.value}')" if dim.value else ""))
    if missing:
        how = "a batch size (--batch_size with --batch_axis) or an input shape (--input_shape)"
        raise ShapeError(f"variable dimensions must be fixed by {how}: {'; '.join(missing)}")


class FixedDimensions:
    """Collects sizes for input dimensions, rejects contradictions, and writes the sizes to the model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._by_name: dict[str, tuple[int, str]] = {}
        self._by_axis: dict[tuple[ir.Value, int], int] = {}

    def fix(self, value: ir.Value, axis: int, size: int) -> None:
        """Records that dimension `axis` of input `value` has `size` elements.

        Raises:
            ShapeError: the dimension, or one of the same name, has another size, or `size` is below 1.
        """
        where = f"input '{value.name}' dimension {axis}"
        if size < 1:
            raise ShapeError(f"{where}: {size} is no size; expected at least 1")
        assert value.shape is not None, "the caller gives an input that has a rank"
        dim = value.shape[axis]
        if isinstance(dim, int):
            if dim != size:
                raise ShapeError(f"{where} is {dim} in the model and cannot be changed to {size}")
            return
        if dim.value is not None:
            known, first_axis = self._by_name.setdefault(dim.value, (size, where))
            if known != size:
                raise ShapeError(f"{where} is named '{dim.value}' like that of {first_axis}, which is {known}; it cannot be {size}")
        self._by_axis[value, axis] = size

    def apply(self) -> bool:
        """Writes the sizes, also to every value with a dimension of the same name; returns whether any were set."""
        for (value, axis), size in self._by_axis.items():
            assert value.shape is not None, "fix saw it"
            dims = list(value.shape)
            dims[axis] = size
            value.shape = ir.Shape(dims)
        for value in traverse_values(self._model):
            if value.shape is not None and any(_name(dim) in self._by_name for dim in value.shape):
                value.shape = ir.Shape([self._sized(dim) for dim in value.shape])
        return bool(self._by_axis)

    def _sized(self, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
        found = self._by_name.get(_name(dim) or "")
        return dim if found is None else found[0]


def _name(dim: int | ir.SymbolicDim) -> str | None:
    return None if isinstance(dim, int) else dim.value


@register("const_batch_size")
class ConstBatchSize(Pass):
    """Sets one dimension of every input to the batch size. Where it is known already, it must be that; scalars have none.

    Args:
        batch_size: At least 1; None leaves the model as it is.
        batch_axis: Which dimension; from the back if negative.
    """

    def __init__(self, batch_size: int | None = None, batch_axis: int = 0) -> None:
        if batch_size is not None and batch_size < 1:
            raise OptionError(f"batch_size {batch_size}: expected at least 1")
        self._size, self._axis = batch_size, batch_axis

    def run(self, model: ir.Model) -> bool:
        if self._size is None:
            return False
        dimensions = FixedDimensions(model)
        for name, value in fed_inputs(model).items():
            if value.shape is None:
                raise ShapeError(f"input '{name}' has no declared shape to set a batch size in; give it one by input_shape")
            rank = len(value.shape)
            if rank == 0:
                continue
            if not -rank <= self._axis < rank:
                raise ShapeError(f"input '{name}' has {rank} dimensions {value.shape}, hence no batch axis {self._axis}")
            dimensions.fix(value, self._axis % rank, self._size)
        return dimensions.apply()


@register("const_input_shape")
class ConstInputShape(Pass):
    """Fixes the variable dimensions of inputs to the sizes given. A dimension that is known already cannot be changed.

    A named dimension gets its size wherever the name stands.

    Args:
        input_shape: By input name, its whole shape. Inputs that are not mentioned, and dimensions of size -1, stay as they are.
        may_lack_batch: Whether a shape may lack dimension 0, which then stays as it is.
    """

    def __init__(self, input_shape: Mapping[str, Sequence[int]] | None = None, may_lack_batch: bool = False) -> None:
        self._shapes = dict(input_shape or {})
        self._may_lack_batch = may_lack_batch

    def run(self, model: ir.Model) -> bool:
        inputs = fed_inputs(model)
        dimensions = FixedDimensions(model)
        for name, shape in self._shapes.items():
            value = inputs.get(name)
            if value is None:
                raise ShapeError(f"there is no input '{name}' to give a shape to; the inputs are {', '.join(inputs)}")
            if value.shape is None:
                value.shape = ir.Shape([None] * len(shape))
            if self._may_lack_batch and len(shape) == len(value.shape) - 1:
                shape = (OPEN, *shape)
            if len(value.shape) != len(shape):
                raise ShapeError(f"input '{name}' has {len(value.shape)} dimensions {value.shape}, not {len(shape)} as in {list(shape)}")
            for axis, size in enumerate(shape):
                if size != OPEN:
                    dimensions.fix(value, axis, size)
        return dimensions.apply()


@model_pass()
def shape_inference(model: ir.Model) -> bool:
    """Infers shapes and element types of all values, with the contents of small shape tensors followed as well."""
    return infer_shapes(model)


@node_pass("Squeeze")
def fill_squeeze_axes(node: ir.Node) -> bool:
    """Gives a Squeeze without axes the axes of size 1 of its input, where the input's shape is known."""
    if input_at(node, 1) is not None:
        return False
    shape = static_shape(node.inputs[0])
    if shape is None:
        return False
    node.resize_inputs(2)
    axes = np.array([axis for axis, size in enumerate(shape) if size == 1], np.int64)
    node.replace_input_with(1, new_constant(node, axes, "axes"))
    return True


#: What is computed about shapes is made of these; weights are not.
_INDEX_TYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
#: Bytes; a chain of shape arithmetic never makes more.
_LARGEST = 1 << 16


@model_pass()
def trace_folding(model: ir.Model) -> bool:
    """Computes the chains of Shape, Gather, Concat and integer arithmetic that end in shapes, once the inputs' shapes are static.

    Weights are left to `constant_folding`. Each round may make more shapes known, which makes more chains constant.
    """
    changed = infer_shapes(model)
    while fold_constants(model, max_tensor_size=_LARGEST, only=_is_about_indices):
        changed = True
        infer_shapes(model)
    return changed


def _is_about_indices(node: ir.Node) -> bool:
    return all(output.dtype in _INDEX_TYPES for output in node.outputs)


@register("constant_folding")
class ConstantFolding(Pass):
    """Computes nodes whose inputs are all constant, as far as the results stay below a size.

    Args:
        max_tensor_size: Bytes that a tensor created may have at most; -1 for any number.
    """

    def __init__(self, max_tensor_size: int = -1) -> None:
        if max_tensor_size < -1:
            raise OptionError(f"max_tensor_size {max_tensor_size}: expected bytes, or -1 for no limit")
        self._max_tensor_size = max_tensor_size

    def run(self, model: ir.Model) -> bool:
        return fold_constants(model, max_tensor_size=self._max_tensor_size)
