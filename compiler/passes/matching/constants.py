"""Reading what a graph knows before it runs: initialisers and the values of `Constant` nodes."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: How far a constant may lie from the number it stands for: half precision keeps 11 bits, so that sqrt(2) in FP16 is 3e-4 off.
SCALAR_TOLERANCE = 1e-3


def constant_array(value: ir.Value | None) -> NDArray[Any] | None:
    """The array that `value` always holds, or None; an initialiser that is also a graph input may be overridden and is no constant."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype is ir.DataType.STRING:
        return None
    return tensor.numpy()


def is_constant(value: ir.Value | None) -> bool:
    """Whether `value` holds the same array in every run; the array is not read."""
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.const_value is not None if producer is None else producer.op_type == "Constant" and producer.domain == ""


def scalar_of(value: ir.Value | None) -> float | None:
    """The one number that constant `value` holds, given as a scalar or as one element in one dimension; None for anything else."""
    array = constant_array(value)
    if array is None or array.size != 1 or array.ndim > 1 or array.dtype.kind not in "fiuV":
        return None
    return float(array.reshape(())[()])


def is_scalar(value: ir.Value | None, expected: float) -> bool:
    """Whether `value` is the constant `expected`, as well as half precision can say it."""
    found = scalar_of(value)
    return found is not None and math.isclose(found, expected, rel_tol=SCALAR_TOLERANCE, abs_tol=0.0)


def ints_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The integers that constant `value` (a scalar or one-dimensional) holds, or None."""
    array = constant_array(value)
    if array is None or array.ndim > 1 or array.dtype.kind not in "iu":
        return None
    return tuple(int(each) for each in np.atleast_1d(array))
