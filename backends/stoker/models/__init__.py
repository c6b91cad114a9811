"""The module for a model.py of the lighter form: annotations of arrays, `batched`, `BadRequest`, `Context`.

    from stoker.models import Array, batched, float32

    @batched(max=32)
    def predict(image: Array["n", 8, 8, float32]) -> Array["n", 10, float32]:
        ...

Needs Python 3.10, numpy and the standard library only.
"""

import numpy as np

from stoker.models.annotations import Array, bfloat16
from stoker.models.batching import batched
from stoker.models.context import Context
from stoker.models.errors import BadRequest

float16, float32, float64 = np.float16, np.float32, np.float64
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64

__all__ = [
    "Array",
    "BadRequest",
    "Context",
    "batched",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
