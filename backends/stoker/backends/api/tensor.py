"""Tensor element types and their three spellings: the wire's (`FP32`), config.pbtxt's (`TYPE_FP32`), numpy's.

BF16 has no numpy type: arrays carry its raw bits as uint16. BYTES arrays are object arrays whose elements are `bytes`.
"""

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_NUMPY: dict[str, type[object]] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": np.uint16, "BYTES": np.object_,
}  # fmt: skip


class DataType(enum.Enum):
    """An element type, named as KServe v2 names it on the wire."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    numpy: np.dtype[Any]
    item_bytes: int
    config_name: str

    def __init__(self, wire_name: str) -> None:
        self.numpy = np.dtype(_NUMPY[wire_name])
        #: Bytes per element; 0 for BYTES, whose elements vary.
        self.item_bytes = 0 if wire_name == "BYTES" else self.numpy.itemsize
        self.config_name = "TYPE_STRING" if wire_name == "BYTES" else f"TYPE_{wire_name}"

    @property
    def is_bytes(self) -> bool:
        """Whether elements are byte strings of varying length."""
        return self is DataType.BYTES


BY_WIRE_NAME: dict[str, DataType] = {t.value: t for t in DataType}
BY_CONFIG_NAME: dict[str, DataType] = {t.config_name: t for t in DataType}


def element_count(shape: Sequence[int]) -> int:
    """The product of `shape` as an exact Python int, so that no hostile shape overflows. An empty shape counts 1."""
    return math.prod(shape)
