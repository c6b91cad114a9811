"""Casts at the border, between what clients send and get, and what the device takes and gives: see `popef.served_types`.

Among floats, a value beyond the narrower type's range becomes infinite, as on the device; among integers it is refused.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def cast_into(target: Array, source: Array) -> str:
    """Writes `source` to `target`, of the same shape and a castable type.

    Returns:
        What does not fit, in words; empty where everything does.
    """
    if target.dtype.kind == "i" and source.dtype.itemsize > target.dtype.itemsize:
        limits = np.iinfo(target.dtype)
        wrong = (source < limits.min) | (source > limits.max)
        if wrong.any():
            value = int(source[wrong].flat[0])
            return f"holds {value}, which is outside {limits.min} to {limits.max}, the range of the device's {target.dtype}"
    with np.errstate(over="ignore"):  # to infinity: the rule above
        np.copyto(target, source, casting="same_kind")
    return ""
