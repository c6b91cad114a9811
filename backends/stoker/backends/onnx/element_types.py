"""ONNX Runtime's spelling of element types."""

from stoker.backends.api.tensor import DataType

#: ONNX's number of bfloat16, which numpy cannot name.
BFLOAT16 = 16

#: ONNX Runtime's own spelling (`tensor(float)`) of the served types.
BY_SESSION_NAME: dict[str, DataType] = {
    "tensor(float)": DataType.FP32, "tensor(uint8)": DataType.UINT8, "tensor(int8)": DataType.INT8, "tensor(uint16)": DataType.UINT16,
    "tensor(int16)": DataType.INT16, "tensor(int32)": DataType.INT32, "tensor(int64)": DataType.INT64, "tensor(string)": DataType.BYTES,
    "tensor(bool)": DataType.BOOL, "tensor(float16)": DataType.FP16, "tensor(double)": DataType.FP64, "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64, "tensor(bfloat16)": DataType.BF16,
}  # fmt: skip
