"""Tensors as raw bytes: little endian, row major; BYTES elements each behind a 4-byte length. Both protocols carry these bytes."""

import struct

import numpy as np

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch
from stoker.server.core.request import Array

_LENGTH = struct.Struct("<I")
#: Elements that are encoded at once.
_STEP = 16_384
#: Bytes of an array that are copied at once.
_STEP_BYTES = 1 << 20
#: Up to here tensors are joined as they lie, in some milliseconds at most.
_VIEWED_BYTES = 16 << 20
#: Requests of raw tensors up to this size are decoded on the event loop: the tensors are viewed where they are, so that only what checks or
#: converts values (booleans) touches every byte.
INLINE_RAW_BYTES = 4 << 20
Raw = bytes | memoryview


def array_from_bytes(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, raw: Raw) -> Array:
    """The array of `shape` (`count` elements) that `raw` holds: a read-only view on it, at any alignment, where its type permits.

    Raises:
        SignatureMismatch: `raw` is not exactly what `shape` needs.
    """
    datatype = spec.datatype
    size = len(raw)
    if datatype is DataType.BYTES:
        return _strings(check, spec, shape, count, raw)
    if size != count * datatype.item_bytes:
        raise check.byte_size(spec, count * datatype.item_bytes, size)
    if datatype is DataType.BOOL:
        # Any nonzero byte is true; numpy would carry other values than 0 and 1 on unseen.
        octets: Array = np.ndarray(shape, np.uint8, raw)
        return octets != 0 if count and octets.max() > 1 else octets.view(np.bool_)
    # A slice of a message may start anywhere. Whoever needs elements at their natural alignment copies, as most do anyhow.
    array: Array = np.ndarray(shape, datatype.numpy, raw)
    return array


def array_from_span(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, span: Span) -> Array:
    """As `array_from_bytes`, of a copy of `span`; what cannot fit is refused before anything is copied."""
    datatype = spec.datatype
    if datatype is not DataType.BYTES and span.byte_size != count * datatype.item_bytes:
        raise check.byte_size(spec, count * datatype.item_bytes, span.byte_size)
    return array_from_bytes(check, spec, shape, count, span.read())


def array_to_bytes(array: Array, datatype: DataType) -> bytes:
    """The array's bytes on the wire."""
    return b"".join(array_pieces(array, datatype)) if datatype is DataType.BYTES else array.tobytes()


def array_pieces(array: Array, datatype: DataType) -> list[Raw]:
    """The array's bytes on the wire, in pieces to be joined with others: that join is the one copy that is made of a tensor.

    Joining views holds the interpreter, so what would hold it for long is copied in steps first; joining large bytes does not hold it.
    """
    if datatype is not DataType.BYTES:
        if array.nbytes <= _VIEWED_BYTES and array.size and array.flags.c_contiguous:
            return [array.data.cast("B")]
        flat, step = array.reshape(-1), max(1, _STEP_BYTES // array.itemsize)
        return [flat[at : at + step].tobytes() for at in range(0, flat.size, step)]
    values: list[bytes | str] = array.reshape(-1).tolist()
    # Some thousand at a time: the lengths are objects too, and would take more memory than the strings.
    return [_with_lengths(values[at : at + _STEP]) for at in range(0, len(values), _STEP)]


def _with_lengths(strings: list[bytes | str]) -> bytes:
    values = [value.encode() if isinstance(value, str) else value for value in strings]
    parts: list[bytes] = [b""] * (2 * len(values))
    parts[::2] = map(_LENGTH.pack, map(len, values))
    parts[1::2] = values
    return b"".join(parts)


def object_array(values: list[bytes], shape: tuple[int, ...]) -> Array:
    """A BYTES array of `shape`."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array.reshape(shape)


def _strings(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, raw: Raw) -> Array:
    size = len(raw)
    if size < 4 * count:
        # Each element takes 4 bytes at least: a declared count cannot make us look further than the data goes.
        raise check.element_count(spec, count, f"{size} bytes, too few for as many length prefixes")
    # Slices of bytes are the elements themselves; those of a view would have to be copied once more.
    data = raw if isinstance(raw, bytes) else bytes(raw)
    values: list[bytes] = []
    append, length_at = values.append, _LENGTH.unpack_from
    at, last = 0, size - _LENGTH.size
    for _ in range(count):
        if at > last:
            if at == size:
                raise check.element_count(spec, count, len(values))
            raise SignatureMismatch(
                f"incomplete string length indicator for inference input '{spec.name}', expecting 4 bytes but only "
                f"{size - at} bytes available"
            )
        begin = at + 4
        at = begin + length_at(data, at)[0]
        if at > size:
            raise SignatureMismatch(
                f"incomplete string data for inference input '{spec.name}', expecting string of length {at - begin} but only "
                f"{size - begin} bytes available"
            )
        append(data[begin:at])
    if at != size:
        raise check.element_count(spec, count, f"{size - at} bytes more")
    return object_array(values, shape)
