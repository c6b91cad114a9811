"""Memory of the host as copies see it: plain bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.runtime.errors import Status, StatusError

Bytes = npt.NDArray[np.uint8]


def readable_bytes(memory: Any) -> Bytes:
    """The bytes of `memory`, an array or anything with the buffer protocol, without a copy.

    Raises:
        StatusError: it is not contiguous, or holds objects.
    """
    if isinstance(memory, np.ndarray):
        if memory.dtype.hasobject:
            raise StatusError(
                Status.TIF_UN_SUPPORTED_DATA_TYPE, f"host memory of dtype {memory.dtype} cannot be copied: it holds no numbers"
            )
        if not memory.flags.c_contiguous:
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"the host array of shape {memory.shape} is not contiguous; copies take contiguous arrays"
            )
        return memory.reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(memory, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"host memory must be a contiguous array or buffer, not {type(memory).__name__}: {error}"
        ) from error


def writable_bytes(memory: Any) -> Bytes:
    """As `readable_bytes`, of memory that can be written to.

    Raises:
        StatusError: it is not contiguous, holds objects, or is read-only.
    """
    view = readable_bytes(memory)
    if not view.flags.writeable:
        raise StatusError(Status.TIF_INVALID_PARAM, f"host memory of {view.nbytes} bytes is read-only; nothing can be copied into it")
    return view


def first_bytes(memory: Bytes, size: int | None) -> Bytes:
    """The first `size` of them; None: all.

    Raises:
        StatusError: there are not so many.
    """
    if size is None:
        return memory
    if not 0 <= size <= memory.nbytes:
        raise StatusError(Status.TIF_INVALID_VALUE, f"{size} bytes of host memory are to be copied; it has {memory.nbytes}")
    return memory[:size]
