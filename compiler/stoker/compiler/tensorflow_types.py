"""TensorFlow's names of element types, which Adlik's config.pbtxt uses, for Triton's."""

from collections.abc import Mapping

#: `TYPE_FP32` -> `DT_FLOAT`, for all that both have (tensorflow/core/framework/types.proto).
TENSORFLOW_NAMES: Mapping[str, str] = {
    "TYPE_BOOL": "DT_BOOL",
    "TYPE_UINT8": "DT_UINT8",
    "TYPE_UINT16": "DT_UINT16",
    "TYPE_UINT32": "DT_UINT32",
    "TYPE_UINT64": "DT_UINT64",
    "TYPE_INT8": "DT_INT8",
    "TYPE_INT16": "DT_INT16",
    "TYPE_INT32": "DT_INT32",
    "TYPE_INT64": "DT_INT64",
    "TYPE_FP16": "DT_HALF",
    "TYPE_FP32": "DT_FLOAT",
    "TYPE_FP64": "DT_DOUBLE",
    "TYPE_BF16": "DT_BFLOAT16",
    "TYPE_STRING": "DT_STRING",
}
_TRITON_NAMES = {theirs: ours for ours, theirs in TENSORFLOW_NAMES.items()}


def triton_name(datatype: str) -> str:
    """Triton's name of `datatype`, which may be in either spelling; any other text as it is."""
    return _TRITON_NAMES.get(datatype, datatype)
