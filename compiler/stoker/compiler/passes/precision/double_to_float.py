"""`double_to_float`: the device has no 64-bit floats."""

import logging
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.retype import Retyping, retype

log = logging.getLogger(__name__)


@register("double_to_float", before=("float_to_half", "float_to_mixed", "float_to_fp8", "float_to_int8"))
class DoubleToFloat(Pass):
    """Makes DOUBLE tensors FLOAT: constants, what is computed from them, and inputs and outputs of the model.

    Finite constants beyond the range of FLOAT are clipped to it with a warning. Results agree to FLOAT's precision, about 1e-6 relative.
    """

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        return retype(model, Retyping(source=ir.DataType.DOUBLE, target=ir.DataType.FLOAT, convert=_to_float))


def _to_float(value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[Any]:
    assert value.const_value is not None
    array = value.const_value.numpy()
    limit = np.finfo(np.float32).max
    if np.any(np.isfinite(array) & (np.abs(array) > limit)):
        log.warning("constant '%s' has values beyond FLOAT; they are clipped to +-%g", value.name, limit)
        array = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
    return array.astype(np.float32)
