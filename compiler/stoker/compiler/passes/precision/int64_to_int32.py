"""`int64_to_int32`: the device has no 64-bit integers."""

import onnx_ir as ir

from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.number_types import to_int32
from stoker.compiler.precision.retype import Retyping, retype


@register("int64_to_int32")
class Int64ToInt32(Pass):
    """Makes INT64 tensors INT32, inputs and outputs of the model included; what ONNX defines for INT64 only gets it by a Cast.

    Constants out of range are clipped where that changes nothing (ends of a Slice) or only at the very end of the range (comparisons, with
    a warning), and refused elsewhere. Results are the same as long as no computed value leaves INT32.
    """

    def __init__(self, *, keep_io_types: bool = False) -> None:
        """Takes whether the model's inputs and outputs stay INT64."""
        self.keeps_io_types = keep_io_types

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        retyping = Retyping(source=ir.DataType.INT64, target=ir.DataType.INT32, convert=to_int32, changes_io=not self.keeps_io_types)
        return retype(model, retyping)
