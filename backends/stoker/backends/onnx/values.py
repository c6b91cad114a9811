"""ONNX Runtime's values from and to numpy arrays: bfloat16, which numpy does not have, and strings."""

import ctypes

import numpy as np
import onnxruntime as ort

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.layout import Array
from stoker.backends.onnx.element_types import BFLOAT16


def bfloat16_value(bits: Array) -> ort.OrtValue:
    """A value of bfloat16 from its raw bits (uint16)."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16)


def array_of(value: ort.OrtValue) -> Array:
    """The elements of `value` on the host; raw bits (uint16) where it is bfloat16, which must lie on the host already."""
    if value.element_type() != BFLOAT16:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    # bytearray: the copy is writable, as every other output is.
    return np.frombuffer(bytearray(raw), dtype=np.uint16).reshape(value.shape())


def decoded(name: str, array: Array) -> Array:
    """Elements as `str`: ONNX Runtime would take `bytes` and silently make "b'...'" of them."""
    text = np.empty(array.shape, dtype=np.object_)
    flat = text.reshape(-1)
    for index, element in enumerate(array.reshape(-1)):
        try:
            flat[index] = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"input '{name}' element {index} is not UTF-8 ({error.reason} at byte {error.start}); ONNX strings are UTF-8 text"
            ) from None
    return text


def encoded(array: Array) -> Array:
    """Elements as `bytes`, from the `str` that ONNX Runtime returns."""
    raw = np.empty(array.shape, dtype=np.object_)
    flat = raw.reshape(-1)
    for index, element in enumerate(array.reshape(-1)):
        flat[index] = element.encode() if isinstance(element, str) else element
    return raw
