"""Converts between numpy arrays and TensorFlow's tensor messages, without TensorFlow.

Numbers are sent as `tensor_content` (little-endian, row-major), the only form that every runtime of Adlik accepts. Strings are sent as
`string_val`. Responses may use either form. As in TensorFlow, the last typed value is repeated for missing ones, and an empty list stands
for zeros.
"""

import math
from typing import Any

import numpy as np

from stoker_client._pb import adlik_messages as pb
from stoker_client.datatypes import Array
from stoker_client.errors import InvalidRequest, InvalidResponse

#: Element types with a numpy type, and the field with their typed values. BF16 has no numpy type: its bits are uint16.
_TYPES: dict[int, tuple[np.dtype[Any], str]] = {
    pb.DT_FLOAT: (np.dtype("<f4"), "float_val"),
    pb.DT_DOUBLE: (np.dtype("<f8"), "double_val"),
    pb.DT_HALF: (np.dtype("<f2"), "half_val"),
    pb.DT_BFLOAT16: (np.dtype("<u2"), "half_val"),
    pb.DT_INT8: (np.dtype("i1"), "int_val"),
    pb.DT_INT16: (np.dtype("<i2"), "int_val"),
    pb.DT_INT32: (np.dtype("<i4"), "int_val"),
    pb.DT_INT64: (np.dtype("<i8"), "int64_val"),
    pb.DT_UINT8: (np.dtype("u1"), "int_val"),
    pb.DT_UINT16: (np.dtype("<u2"), "int_val"),
    pb.DT_UINT32: (np.dtype("<u4"), "uint32_val"),
    pb.DT_UINT64: (np.dtype("<u8"), "uint64_val"),
    pb.DT_BOOL: (np.dtype(np.bool_), "bool_val"),
    pb.DT_COMPLEX64: (np.dtype("<c8"), "scomplex_val"),
    pb.DT_COMPLEX128: (np.dtype("<c16"), "dcomplex_val"),
}
_TYPE_OF_DTYPE = {dtype: number for number, (dtype, _) in _TYPES.items() if number != pb.DT_BFLOAT16}
#: 16-bit floats whose typed values are the integers of their bits.
_BITS = frozenset({pb.DT_HALF, pb.DT_BFLOAT16})


def tensor_dtype_to_np_dtype(tensor_dtype: int) -> type[Any] | None:
    """The numpy scalar type of a `DataType` number (uint16 for BF16's bits, object for strings); None if there is none."""
    if tensor_dtype == pb.DT_STRING:
        return np.object_
    known = _TYPES.get(tensor_dtype)
    return None if known is None else known[0].type


def proto_from_array(name: str, array: Array) -> pb.TensorProto:
    """The message for input `name` from `array`; str elements become UTF-8.

    Raises:
        InvalidRequest: its element type is not supported.
    """
    proto = pb.TensorProto()
    set_array(proto, name, array)
    return proto


def set_array(proto: pb.TensorProto, name: str, array: Array) -> None:
    """Fills an empty tensor, which may be a field of another message, as `proto_from_array` does: a large tensor is then not copied between
    messages.

    Raises:
        InvalidRequest: as `proto_from_array`.
    """
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype.kind in "OSU":
        proto.dtype = pb.DT_STRING
        proto.string_val.extend(_as_bytes(name, element) for element in array.ravel().tolist())
        return
    if array.dtype.name == "bfloat16":
        proto.dtype = pb.DT_BFLOAT16
        proto.tensor_content = np.ascontiguousarray(array).view(np.uint16).astype("<u2", copy=False).tobytes()
        return
    wire_type = array.dtype.newbyteorder("<")
    number = _TYPE_OF_DTYPE.get(wire_type)
    if number is None:
        raise InvalidRequest(f"input '{name}' holds {array.dtype}, which has no counterpart on the wire; expected numbers, bool or str")
    proto.dtype = pb.DataType.Name(number)  # type: ignore[assignment] # both a number and a name are taken
    proto.tensor_content = array.astype(wire_type, copy=False).tobytes()


def _as_bytes(name: str, element: object) -> bytes:
    if isinstance(element, str):
        return element.encode("utf-8")
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    raise InvalidRequest(f"input '{name}' takes str or bytes elements, got {type(element).__name__}")


def array_from_proto(name: str, proto: pb.TensorProto) -> Array:
    """Output `name` as an array, read-only if it was received as raw content; strings are an object array of `bytes`.

    Raises:
        InvalidResponse: type, shape and content contradict each other.
    """
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise InvalidResponse(f"output '{name}' came with an unknown shape")
    count = math.prod(shape)
    if proto.dtype == pb.DT_STRING:
        elements = np.empty(len(proto.string_val), dtype=np.object_)
        elements[:] = list(proto.string_val)
        return _spread(name, elements, count, b"").reshape(shape)
    known = _TYPES.get(proto.dtype)
    if known is None:
        raise InvalidResponse(f"output '{name}' came with the element type {_type_name(proto.dtype)}, which has no numpy form")
    dtype, field = known
    content = proto.tensor_content  # each access to the field makes a copy
    if content:
        found, needed = len(content), count * dtype.itemsize
        if found != needed:
            raise InvalidResponse(f"output '{name}' {_type_name(proto.dtype)}{list(shape)} needs {needed} bytes, got {found}")
        return np.frombuffer(content, dtype=dtype).reshape(shape)
    return _spread(name, _typed_values(name, proto, dtype, field), count, dtype.type()).reshape(shape)


def _typed_values(name: str, proto: pb.TensorProto, dtype: np.dtype[Any], field: str) -> Array:
    values = list(getattr(proto, field))
    try:
        if proto.dtype in _BITS:
            return np.asarray(values, dtype=np.uint16).view(dtype)
        if dtype.kind == "c":
            return np.asarray([complex(*pair) for pair in zip(values[::2], values[1::2], strict=True)], dtype=dtype)
        return np.asarray(values, dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise InvalidResponse(f"output '{name}' does not hold {_type_name(proto.dtype)} values: {error}") from error


def _spread(name: str, values: Array, count: int, zero: object) -> Array:
    """Extends `values` to `count` elements by repeating the last one."""
    if values.size > count:
        raise InvalidResponse(f"output '{name}' holds {count} elements, got {values.size}")
    full = np.empty(count, dtype=values.dtype)
    full[: values.size] = values
    full[values.size :] = [values[-1] if values.size else zero]
    return full


def _type_name(number: int) -> str:
    names = {value: key for key, value in pb.DataType.items()}
    return names.get(number, f"number {number}")
