"""ONNX's element types (`TensorProto.DataType`) and what becomes of them on the wire."""

from stoker.backends.api.tensor import DataType

#: What KServe can carry, by ONNX's number.
SERVED: dict[int, DataType] = {
    1: DataType.FP32, 2: DataType.UINT8, 3: DataType.INT8, 4: DataType.UINT16, 5: DataType.INT16, 6: DataType.INT32, 7: DataType.INT64,
    8: DataType.BYTES, 9: DataType.BOOL, 10: DataType.FP16, 11: DataType.FP64, 12: DataType.UINT32, 13: DataType.UINT64, 16: DataType.BF16,
}  # fmt: skip

_OTHERS = {
    14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ", 19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ", 21: "UINT4",
    22: "INT4", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2",
}  # fmt: skip


def element_name(number: int) -> str:
    """ONNX's name of an element type, for messages about types that are not served."""
    return _OTHERS.get(number, f"number {number}")
