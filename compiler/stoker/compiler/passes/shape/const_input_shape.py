"""`const_input_shape`: gives inputs their final shapes."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from stoker.compiler.errors import ShapeError
from stoker.compiler.passes.fixed_dimensions import FixedDimensions, fed_inputs
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("const_input_shape")
class ConstInputShape(Pass):
    """Fixes the variable dimensions of inputs to the sizes given. A dimension that is known already cannot be changed.

    A named dimension gets its size wherever the name stands.

    Args:
        input_shape: By input name, its whole shape. Inputs that are not mentioned stay as they are.
    """

    def __init__(self, input_shape: Mapping[str, Sequence[int]] | None = None) -> None:
        self._shapes = dict(input_shape or {})

    def run(self, model: ir.Model) -> bool:
        inputs = fed_inputs(model)
        dimensions = FixedDimensions(model)
        for name, shape in self._shapes.items():
            value = inputs.get(name)
            if value is None:
                raise ShapeError(f"there is no input '{name}' to give a shape to; the inputs are {', '.join(inputs)}")
            if value.shape is None:
                value.shape = ir.Shape([None] * len(shape))
            if len(value.shape) != len(shape):
                raise ShapeError(f"input '{name}' has {len(value.shape)} dimensions {value.shape}, not {len(shape)} as in {list(shape)}")
            for axis, size in enumerate(shape):
                dimensions.fix(value, axis, size)
        return dimensions.apply()
