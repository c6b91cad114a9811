"""Converts between numpy arrays and the raw form of tensors (little-endian, row-major) of gRPC and of HTTP's binary extension."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker_client.datatypes import BYTES, NUMPY_TYPES, Array, pack_bytes, unpack_bytes, wire_datatype
from stoker_client.errors import InvalidRequest, InvalidResponse


@dataclass(frozen=True, slots=True)
class TypedArray:
    """An input with an explicit datatype: `TypedArray(bits, "BF16")` for BF16 in uint16.

    Attributes:
        array: The elements; for BF16 their bits as uint16.
        datatype: The protocol's name, such as `BF16`.
    """

    array: Array
    datatype: str


TensorLike = npt.ArrayLike | TypedArray


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One input, encoded for either protocol.

    Attributes:
        name: Input name.
        datatype: The protocol's name, such as `FP32`.
        shape: Including any batch dimension.
        raw: Little-endian, row-major; each BYTES element follows its 4-byte length.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


def encode_tensor(name: str, value: TensorLike) -> EncodedTensor:
    """Encodes `value` with one copy. A list is converted by `np.asarray`: Python floats become FP64, ints INT64.

    Raises:
        InvalidRequest: no datatype fits, or the stated one does not fit the array.
    """
    if isinstance(value, TypedArray):
        array, datatype = _as_array(name, value.array), value.datatype
    else:
        array = _as_array(name, value)
        datatype = wire_datatype(array.dtype)
    if datatype == BYTES:
        if array.dtype.kind not in "OSU":
            raise InvalidRequest(f"input '{name}' is stated as BYTES but holds {array.dtype}; expected str, bytes or object elements")
        return EncodedTensor(name, BYTES, array.shape, pack_bytes(array))
    wire_type = NUMPY_TYPES.get(datatype)
    if wire_type is None:
        raise InvalidRequest(
            f"input '{name}' has an unknown datatype '{datatype}'; expected one of {', '.join(sorted(NUMPY_TYPES))} or BYTES"
        )
    if array.dtype.name == "bfloat16" and datatype == "BF16":
        array = np.ascontiguousarray(array).view(np.uint16)
    if array.dtype.newbyteorder("<") != wire_type:
        raise InvalidRequest(f"input '{name}' is stated as {datatype} but holds {array.dtype}; expected {wire_type.name}")
    return EncodedTensor(name, datatype, array.shape, array.astype(wire_type, copy=False).tobytes())


def decode_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> Array:
    """The tensor as a read-only view of `raw`.

    It is copied only if necessary: BYTES elements become an object array of `bytes`, and an unaligned tensor of an HTTP body is moved,
        because native code expects aligned elements.

    Raises:
        InvalidResponse: the length of `raw` does not fit `shape` and `datatype`.
    """
    count = _element_count(name, shape)
    if datatype == BYTES:
        return unpack_bytes(memoryview(raw), count, name).reshape(tuple(shape))
    dtype = _numpy_type(name, datatype)
    if len(raw) != count * dtype.itemsize:
        raise InvalidResponse(f"output '{name}' {datatype}{list(shape)} needs {count * dtype.itemsize} bytes, got {len(raw)}")
    array = np.frombuffer(raw, dtype=dtype).reshape(tuple(shape))
    return array if array.flags.aligned else array.copy()


def decode_elements(name: str, datatype: str, shape: Sequence[int], elements: Any) -> Array:
    """The tensor from a sequence of Python or protobuf values, flat or nested, which a server may send instead of raw data.

    Raises:
        InvalidResponse: the elements do not fit `datatype` or `shape`.
    """
    count = _element_count(name, shape)
    try:
        if datatype == BYTES:
            flat = np.asarray(elements, dtype=np.object_).ravel()
            array = np.empty(flat.size, dtype=np.object_)
            array[:] = [element.encode("utf-8") if isinstance(element, str) else bytes(element) for element in flat]
        else:
            array = np.asarray(elements, dtype=_numpy_type(name, datatype)).ravel()
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidResponse(f"output '{name}' does not hold {datatype} values: {error}") from error
    if array.size != count:
        raise InvalidResponse(f"output '{name}' of shape {list(shape)} needs {count} elements, got {array.size}")
    return array.reshape(tuple(shape))


def _as_array(name: str, value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
        # numpy's string types drop trailing NULs, which are data here.
        return np.asarray(value, dtype=np.object_) if array.dtype.kind in "SU" else array
    except ValueError as error:
        raise InvalidRequest(f"input '{name}' is not an array: {error}") from error


def _numpy_type(name: str, datatype: str) -> np.dtype[Any]:
    dtype = NUMPY_TYPES.get(datatype)
    if dtype is None:
        raise InvalidResponse(f"output '{name}' came with an unknown datatype '{datatype}'")
    return dtype


def _element_count(name: str, shape: Sequence[int]) -> int:
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise InvalidResponse(f"output '{name}' came with an impossible shape {list(shape)}")
    return math.prod(shape)
