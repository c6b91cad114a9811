"""Reading numbers that a graph knows before it runs, as patterns compare them."""

import math

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op

#: How far a constant may lie from the number it stands for: half precision keeps 11 bits, so that sqrt(2) in FP16 is 3e-4 off.
SCALAR_TOLERANCE = 1e-3


def is_constant(value: ir.Value | None) -> bool:
    """Whether `value` holds the same array in every run; the array is not read."""
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() if producer is None else is_op(producer, "Constant")


def scalar_of(value: ir.Value | None) -> float | None:
    """The one number that constant `value` holds, given as a scalar or as one element in one dimension; None for anything else."""
    if not is_constant(value):
        return None
    array = constant_of(value)
    if array is None or array.size != 1 or array.ndim > 1 or array.dtype.kind not in "fiuV":
        return None
    return float(array.reshape(())[()])


def is_close(found: float, expected: float) -> bool:
    """Whether two numbers are the same as far as half precision can say it."""
    return math.isclose(found, expected, rel_tol=SCALAR_TOLERANCE, abs_tol=0.0)


def is_scalar(value: ir.Value | None, expected: float) -> bool:
    """Whether `value` is the constant `expected`, as well as half precision can say it."""
    found = scalar_of(value)
    return found is not None and is_close(found, expected)
