"""OpenVINO's names of element types, as `Type.get_type_name` spells them."""

from stoker.backends.api.tensor import DataType

#: What its CPU plugin takes and gives. Strings are known to it, but a request that held one takes the process down when it ends (2026.4).
SERVED: dict[str, DataType] = {
    "boolean": DataType.BOOL, "u8": DataType.UINT8, "u16": DataType.UINT16, "u32": DataType.UINT32, "u64": DataType.UINT64,
    "i8": DataType.INT8, "i16": DataType.INT16, "i32": DataType.INT32, "i64": DataType.INT64,
    "f16": DataType.FP16, "f32": DataType.FP32, "f64": DataType.FP64, "bf16": DataType.BF16,
}  # fmt: skip

#: Types that the CPU plugin computes as INT32, and cuts to it without a word: a larger value must not get in.
NARROWED = frozenset({DataType.INT64, DataType.UINT64, DataType.UINT32})
