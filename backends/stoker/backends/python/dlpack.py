"""DLPack of bfloat16, which numpy does not have: capsules from and to arrays of the bits.

The layout is DLPack's `DLManagedTensor` (dlpack.h, version 0.8), which `torch.from_dlpack` and others take.
"""

import ctypes
import math
from typing import Any

import numpy as np

from stoker.backends.api.layout import Array

_CPU, _BFLOAT = 1, 4
_NEW, _USED = b"dltensor", b"used_dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter))

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

#: What each capsule that was given away needs alive, by the address of its structure.
_alive: dict[int, tuple[Any, ...]] = {}


def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    # A capsule that was used has another name, and its consumer calls the deleter.
    if _raw_is_valid(capsule, _NEW):
        _alive.pop(_raw_pointer(capsule, _NEW), None)


#: C calls them as long as a capsule lives.
_DELETER, _DESTRUCTOR = _Deleter(_delete), _Destructor(_destroy)


def bfloat16_capsule(bits: Array) -> Any:
    """A capsule of bfloat16 elements in the memory of `bits`, a C-contiguous array of uint16."""
    shape = (ctypes.c_int64 * bits.ndim)(*bits.shape)
    managed = _DLManagedTensor(
        tensor=_DLTensor(
            data=bits.ctypes.data,
            device_type=_CPU,
            device_id=0,
            ndim=bits.ndim,
            code=_BFLOAT,
            bits=16,
            lanes=1,
            shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            strides=None,
            byte_offset=0,
        ),
        manager_ctx=None,
        deleter=_DELETER,
    )
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, bits)
    return _new_capsule(address, _NEW, _DESTRUCTOR)


def bfloat16_bits(capsule: Any) -> Array | None:
    """The bits of a capsule of bfloat16 elements, uint16 and in its shape, copied; None: it has other elements, and is unused.

    Raises:
        ValueError: the elements are not contiguous.
    """
    if type(capsule).__name__ != "PyCapsule" or not _is_valid(capsule, _NEW):
        return None
    managed = ctypes.cast(_pointer(capsule, _NEW), ctypes.POINTER(_DLManagedTensor))
    tensor = managed.contents.tensor
    if (tensor.code, tensor.bits, tensor.lanes, tensor.device_type) != (_BFLOAT, 16, 1, _CPU):
        return None
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        expected = 1
        for axis in reversed(range(tensor.ndim)):
            if shape[axis] > 1 and tensor.strides[axis] != expected:
                raise ValueError("the elements of a bfloat16 tensor must be contiguous: call .contiguous()")
            expected *= shape[axis]
    size = math.prod(shape)
    raw = ctypes.string_at(tensor.data + tensor.byte_offset, 2 * size) if size else b""
    bits: Array = np.frombuffer(raw, dtype=np.uint16).reshape(shape)
    # As every consumer does: the capsule is used up, and its producer releases the memory.
    _set_name(capsule, _USED)
    if managed.contents.deleter:
        managed.contents.deleter(managed)
    return bits
