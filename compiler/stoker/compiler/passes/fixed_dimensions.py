"""What makes a model's shapes static: sizes for the variable dimensions of its inputs, and the question which are still missing."""

import onnx_ir as ir

from stoker.compiler.errors import ShapeError
from stoker.compiler.passes.traverse import traverse_values


def fed_inputs(model: ir.Model) -> dict[str, ir.Value]:
    """Inputs that a caller must feed, by name in order: those that have no initialiser."""
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
        raise ShapeError(f"variable dimensions must be fixed by a batch size or an input shape: {'; '.join(missing)}")


class FixedDimensions:
    """Collects sizes for dimensions of inputs, refuses contradictions, and writes them wherever they belong."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._by_name: dict[str, tuple[int, str]] = {}
        self._by_axis: dict[tuple[ir.Value, int], int] = {}

    def fix(self, value: ir.Value, axis: int, size: int) -> None:
        """Notes that dimension `axis` of input `value` has `size` elements.

        Raises:
            ShapeError: it is known to have another size, by itself or by its name, or the size is none.
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
        """Writes the sizes, also to every value with a dimension of the same name; returns whether there was anything to write."""
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
