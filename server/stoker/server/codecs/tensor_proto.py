"""TensorFlow's TensorProto, which TensorFlow Serving's and Adlik's messages carry: element types and typed values."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_bytes import Raw, object_array
from stoker.server.core.request import Array
from stoker.server.pb.tensorflow.core.framework import types_pb2

_ENUM_NAMES = {
    DataType.BOOL: "DT_BOOL",
    DataType.UINT8: "DT_UINT8",
    DataType.UINT16: "DT_UINT16",
    DataType.UINT32: "DT_UINT32",
    DataType.UINT64: "DT_UINT64",
    DataType.INT8: "DT_INT8",
    DataType.INT16: "DT_INT16",
    DataType.INT32: "DT_INT32",
    DataType.INT64: "DT_INT64",
    DataType.FP16: "DT_HALF",
    DataType.FP32: "DT_FLOAT",
    DataType.FP64: "DT_DOUBLE",
    DataType.BF16: "DT_BFLOAT16",
    DataType.BYTES: "DT_STRING",
}
#: The number of each element type in TensorFlow's enum.
NUMBERS: dict[DataType, Any] = {datatype: types_pb2.DataType.Value(name) for datatype, name in _ENUM_NAMES.items()}
#: What a tensor says that leaves its element type to the model.
UNSAID = types_pb2.DT_INVALID

_TYPE_NAMES: Final[Mapping[int, str]] = {number: name.removeprefix("DT_").lower() for name, number in types_pb2.DataType.items()}
#: The field of TensorProto that holds typed values of each element type.
VALUE_FIELDS: Mapping[DataType, str] = {
    DataType.FP16: "half_val",
    DataType.BF16: "half_val",
    DataType.FP32: "float_val",
    DataType.FP64: "double_val",
    DataType.INT8: "int_val",
    DataType.INT16: "int_val",
    DataType.INT32: "int_val",
    DataType.UINT8: "int_val",
    DataType.UINT16: "int_val",
    DataType.INT64: "int64_val",
    DataType.BOOL: "bool_val",
    DataType.UINT32: "uint32_val",
    DataType.UINT64: "uint64_val",
    DataType.BYTES: "string_val",
}
#: Types whose values travel in a wider field, and so may come out of range.
_NARROW = frozenset({DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16})
_HALVES = frozenset({DataType.FP16, DataType.BF16})


class TensorFields(NamedTuple):
    """A TensorProto, from whichever protocol.

    Attributes:
        dtype: TensorFlow's number of the element type; 0 leaves it to the model.
        shape: With the batch dimension; None leaves it to the model.
        content: Raw little-endian bytes; empty where there are none.
        values: Typed values by field name, only fields that hold some: arrays or sequences of numbers, or of `bytes` for `string_val`.
    """

    dtype: int
    shape: tuple[int, ...] | None
    content: Raw
    values: Mapping[str, Any]


def shown_type(number: int) -> str:
    """`DT_FLOAT (1)`, or the bare number where TensorFlow has no such type."""
    known = types_pb2.DataType.DESCRIPTOR.values_by_number.get(number)
    return f"{number}" if known is None else known.name


def type_name(datatype: DataType) -> str:
    """TensorFlow's word for an element type in errors, such as `float`."""
    return _TYPE_NAMES[NUMBERS[datatype]]


def values_array(spec: TensorSpec, field: str, given: Any) -> Array:
    """The flat array of the typed values `given` in `field`. Safe in a thread.

    Raises:
        InvalidRequest: a value is outside the range of the element type.
    """
    datatype = spec.datatype
    if datatype is DataType.BYTES:
        return object_array(list(given), (len(given),))
    if datatype in _HALVES:
        bits = np.array(given, dtype=np.int64)
        if bool((bits < 0).any()) or bool((bits > 0xFFFF).any()):
            raise InvalidRequest(f"input '{spec.name}': {field} holds numbers that are not 16 bits, 0 to 65535")
        half: Array = bits.astype(np.uint16).view(datatype.numpy)
        return half
    if datatype in _NARROW:
        wide = np.array(given, dtype=np.int64)
        bounds = np.iinfo(datatype.numpy)
        if bool((wide < bounds.min).any()) or bool((wide > bounds.max).any()):
            raise InvalidRequest(
                f"input '{spec.name}': {field} holds values outside the range of {shown_type(NUMBERS[datatype])}, "
                f"{bounds.min} to {bounds.max}"
            )
        narrow: Array = wide.astype(datatype.numpy)
        return narrow
    array: Array = np.array(given, dtype=datatype.numpy)
    return array
