"""The binary form of a stored response outside this process. No code is in it, and every length is checked before it is used.

    "SRC1"  u32 tensors  then for each tensor: u16 name, name, u8 datatype, datatype, u8 rank, u64 sizes, u64 bytes, bytes

Numbers are little-endian. The bytes of a tensor are its elements in row-major order; those of BYTES are a u32 length and the bytes of each
element.
"""

import struct
from typing import Final

import numpy as np

from stoker.backends.api.tensor import DataType
from stoker.server.caching.response_store import Outputs, StoredResponse, memory_of
from stoker.server.caching.settings import ENTRY_OVERHEAD_BYTES
from stoker.server.core.request import Array

_MAGIC: Final = b"SRC1"
_DATATYPES: Final = {datatype.numpy.name: datatype for datatype in DataType}
_MOST_TENSORS: Final = 4096
_MOST_RANK: Final = 32


class _Malformed(Exception):
    """The bytes are not a stored response."""


def packed_response(outputs: Outputs) -> bytes:
    """The binary form of `outputs`."""
    parts: list[bytes | memoryview] = [_MAGIC, struct.pack("<I", len(outputs))]
    for name, array in outputs.items():
        text, kind = name.encode(), array.dtype.name.encode()
        data: bytes | memoryview
        if array.dtype.hasobject:
            data = b"".join(part for element in array.reshape(-1).tolist() for part in (struct.pack("<I", len(element)), element))
        else:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        parts += (
            struct.pack("<H", len(text)), text, struct.pack("<B", len(kind)), kind,
            struct.pack(f"<B{array.ndim}QQ", array.ndim, *array.shape, len(data)), data,
        )  # fmt: skip
    return b"".join(parts)


def unpacked_response(data: bytes) -> StoredResponse | None:
    """The response in `data`; its arrays are views of it. None: `data` is not in this form."""
    try:
        return _Reader(data).response()
    except (_Malformed, struct.error, UnicodeDecodeError, ValueError):
        return None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def response(self) -> StoredResponse:
        if bytes(self._take(len(_MAGIC))) != _MAGIC:
            raise _Malformed
        (count,) = self._numbers("<I")
        if count > _MOST_TENSORS:
            raise _Malformed
        outputs: dict[str, Array] = {}
        size_bytes = ENTRY_OVERHEAD_BYTES
        for _ in range(count):
            name, array = self._tensor()
            outputs[name] = array
            size_bytes += memory_of(array)
        if self._at != len(self._data) or len(outputs) != count:
            raise _Malformed
        return StoredResponse(outputs, size_bytes)

    def _tensor(self) -> tuple[str, Array]:
        name = str(self._take(self._numbers("<H")[0]), "utf-8")
        datatype = _DATATYPES.get(str(self._take(self._numbers("<B")[0]), "utf-8"))
        (rank,) = self._numbers("<B")
        if datatype is None or rank > _MOST_RANK:
            raise _Malformed
        *shape, size = self._numbers(f"<{rank + 1}Q")
        data = self._take(size)
        count = 1
        for length in shape:
            count *= length
        if datatype.is_bytes:
            array: Array = _strings(data, count).reshape(shape)
        elif count * datatype.numpy.itemsize == size:
            array = np.frombuffer(data, datatype.numpy).reshape(shape)
        else:
            raise _Malformed
        array.setflags(write=False)
        return name, array

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, size: int) -> memoryview:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise _Malformed
        self._at += size
        return taken


def _strings(data: memoryview, count: int) -> Array:
    # An element takes at least the 4 bytes of its length.
    if count * 4 > len(data):
        raise _Malformed
    found = np.empty(count, dtype=np.object_)
    at = 0
    for index in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise _Malformed
        found[index] = bytes(data[at : at + size])
        at += size
    if at != len(data):
        raise _Malformed
    return found
