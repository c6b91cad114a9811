"""How an array lies in memory and fits declared dims: what every batch processor asks of the tensors that pass through it."""

from collections.abc import Sequence

import numpy as np

from stoker.backends.api.model import VARIABLE

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether an array of `shape` is what `dims` (-1: any size) declares; neither holds the batch dimension."""
    return shape == dims or (len(shape) == len(dims) and all(dim in (size, VARIABLE) for size, dim in zip(shape, dims, strict=True)))


def is_plain(array: Array) -> bool:
    """Whether native kernels may read `array` as it is: contiguous, and each element where its size wants it."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def plain(array: Array) -> Array:
    """`array`, as native kernels read it. `np.ascontiguousarray` would turn a scalar into a vector."""
    return array if is_plain(array) else array.copy()


def reshaped(array: Array, lead: int, source: tuple[int, ...], target: tuple[int, ...]) -> Array:
    """`array`, which is `[*lead dims, *source]`, as `[*lead dims, *target]`.

    Triton's reshape rule: the n-th variable dim of the one stands for the n-th of the other.
    """
    sizes = (size for size, dim in zip(array.shape[lead:], source, strict=True) if dim == VARIABLE)
    dims = tuple(next(sizes) if dim == VARIABLE else dim for dim in target)
    return plain(array).reshape((*array.shape[:lead], *dims))
