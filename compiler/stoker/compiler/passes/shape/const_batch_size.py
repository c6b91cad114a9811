"""`const_batch_size`: gives all inputs the same batch size."""

import onnx_ir as ir

from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.passes.fixed_dimensions import FixedDimensions, fed_inputs
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


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
