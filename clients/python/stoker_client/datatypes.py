"""Element types: the protocol's names (`FP32`), numpy's types, and the encoding of BYTES.

numpy has no BF16 type. Arrays of `ml_dtypes.bfloat16` are recognised without importing ml_dtypes; otherwise send the raw
bits as uint16 in a `TypedArray(bits, "BF16")`. Responses in BF16 always arrive as uint16 bits; `bf16_to_float32` widens them.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker_client.errors import InvalidRequest, InvalidResponse

Array = npt.NDArray[Any]

#: By the protocol's name, the little-endian numpy type of the raw form; BYTES has none.
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "UINT8": np.dtype("u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "BF16": np.dtype("<u2"),
}  # fmt: skip

BYTES = "BYTES"

_WIRE_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items() if name != "BF16"}
_LENGTH = struct.Struct("<I")


def wire_datatype(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type: `FP32` for float32, `BYTES` for object, str and bytes types.

    Raises:
        InvalidRequest: the protocol has no such type (complex, datetime, structured, ...).
    """
    if dtype.kind in "OSU":
        return BYTES
    if dtype.name == "bfloat16":
        return "BF16"
    name = _WIRE_NAMES.get(dtype.newbyteorder("<"))
    if name is None:
        raise InvalidRequest(
            f"numpy type '{dtype}' has no counterpart on the wire; expected one of {', '.join(sorted(NUMPY_TYPES))} or BYTES"
        )
    return name


def pack_bytes(array: Array) -> bytes:
    """Encodes an array of `str` (as UTF-8) or bytes: for each element, in row-major order, a 4-byte length and the bytes.

    Raises:
        InvalidRequest: an element of an object array is neither.
    """
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        if isinstance(element, str):
            encoded = element.encode("utf-8")
        elif isinstance(element, bytes | bytearray | memoryview):
            encoded = bytes(element)
        else:
            raise InvalidRequest(f"a BYTES tensor takes str or bytes elements, got {type(element).__name__}")
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def unpack_bytes(raw: memoryview, count: int, name: str) -> Array:
    """Decodes the `count` elements of a BYTES tensor to a flat object array of `bytes`.

    Raises:
        InvalidResponse: the lengths do not add up to the tensor's size.
    """
    elements = np.empty(count, dtype=np.object_)
    at = 0
    for index in range(count):
        if at + _LENGTH.size > len(raw):
            raise InvalidResponse(f"output '{name}' ends after {index} of {count} BYTES elements")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise InvalidResponse(f"element {index} of output '{name}' says {length} bytes, {len(raw) - at} are left")
        elements[index] = bytes(raw[at : at + length])
        at += length
    if at != len(raw):
        raise InvalidResponse(f"output '{name}' has {len(raw) - at} bytes behind its {count} BYTES elements")
    return elements


def bf16_to_float32(bits: Array) -> Array:
    """Widens BF16 bits (uint16, any shape) to float32; exact."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(values: Array) -> Array:
    """Rounds float32 (any shape) to the nearest BF16, ties to even; returns its bits as uint16, to send as `TypedArray(bits, "BF16")`."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)  # wide enough for the carry
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet_nan = bits | 0x0040_0000  # keep a NaN whose payload is only in the low bits
    return (np.where(np.isnan(values), quiet_nan, rounded) >> 16).astype(np.uint16)
