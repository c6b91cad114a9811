"""Constants of the vendor's Python module, and their equivalents in Stoker.

Names are those of public scripts; numbers are those of the vendor's public header, if it defines them.
"""

import enum
from collections.abc import Mapping

from stoker.backends.api.tensor import DataType


class BuildFlag(enum.IntFlag):
    """The precision in which an engine computes."""

    KDEFAULT = 1
    KFP16 = 2
    KFP16_MIX = 4
    KINT8_MIX_FP32 = 8
    KREFIT = 4096


class BufferType(enum.IntEnum):
    """Location of the inputs and outputs of a run: all in host memory or all in device memory."""

    TIF_ENGINE_RSC_IN_HOST_OUT_HOST = 0
    TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE = 1


class ParserType(enum.IntEnum):
    """Model formats of a parser."""

    ONNX_MODEL = 0
    TF_MODEL = 1


class MemcpyKind(enum.IntEnum):
    """Direction of a copy."""

    TIF_MEMCPY_HOST_TO_DEVICE = 0
    TIF_MEMCPY_DEVICE_TO_HOST = 1


class DType(enum.IntEnum):
    """Element types of inputs and outputs, with the header's numbers."""

    DT_BOOL = 0
    DT_INT8 = 2
    DT_INT16 = 3
    DT_INT32 = 4
    DT_INT64 = 5
    DT_UINT8 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_UINT64 = 9
    DT_FLOAT16 = 10
    DT_FLOAT32 = 11
    DT_FLOAT64 = 12


#: Stoker's dtypes by the vendor's.
DATA_TYPES: Mapping[DType, DataType] = {
    DType.DT_BOOL: DataType.BOOL, DType.DT_INT8: DataType.INT8, DType.DT_INT16: DataType.INT16, DType.DT_INT32: DataType.INT32,
    DType.DT_INT64: DataType.INT64, DType.DT_UINT8: DataType.UINT8, DType.DT_UINT16: DataType.UINT16, DType.DT_UINT32: DataType.UINT32,
    DType.DT_UINT64: DataType.UINT64, DType.DT_FLOAT16: DataType.FP16, DType.DT_FLOAT32: DataType.FP32, DType.DT_FLOAT64: DataType.FP64,
}  # fmt: skip
BY_DATA_TYPE: Mapping[DataType, DType] = {ours: theirs for theirs, ours in DATA_TYPES.items()}
