"""TensorFlow's element types, which Adlik's messages carry, in the server's own words."""

from typing import Any

from stoker.backends.api.tensor import DataType
from stoker.server.pb.tensorflow.core.framework import types_pb2

_NAMES = {
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
NUMBERS: dict[DataType, Any] = {datatype: types_pb2.DataType.Value(name) for datatype, name in _NAMES.items()}
#: What a tensor says that leaves its element type to the model.
UNSAID = types_pb2.DT_INVALID


def shown_type(number: int) -> str:
    """`DT_FLOAT (1)`, or the bare number where TensorFlow has no such type."""
    known = types_pb2.DataType.DESCRIPTOR.values_by_number.get(number)
    return f"{number}" if known is None else known.name
