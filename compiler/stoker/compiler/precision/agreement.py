"""Whether two arrays are the same but for rounding, such as that of kernels that sum in another order."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Relative to the largest finite value.
TOLERANCE: Final = 1e-3
#: A value so many times as large as small ones of the same array stands for an infinity, as -1e9 or the least float do in masks.
_MASK_RATIO: Final = 1e6
_SMALL_QUANTILE: Final = 0.1


def agree(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Whether both have one shape, NaN and the same infinities in the same places, and elsewhere values that differ by rounding only.

    Integers, truth values and strings must be equal. The tolerance is relative to the largest value, or to the value itself where that
    is a mask's: neither an infinity nor a huge value makes room for differences elsewhere.
    """
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind not in "fV":
        return bool(np.array_equal(found, wanted))
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(np.isfinite(one), finite) or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    size = np.abs(other[finite])
    return bool(np.all(np.abs(one[finite] - other[finite]) <= TOLERANCE * np.maximum(size, _scale(size))))


def _scale(size: NDArray[np.float64]) -> float:
    """The largest of `size` without masks."""
    some = size[size > 0]
    if not some.size:
        return 0.0
    return float(np.max(some[some <= _MASK_RATIO * np.quantile(some, _SMALL_QUANTILE)], initial=0.0))
