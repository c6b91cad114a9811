"""Tensor elements to numpy arrays and back: raw bytes, length-prefixed strings, JSON lists.

Arrays of raw bytes are views of the message; the other forms are copied. Every function takes the number of elements that
`SignatureCheck` has verified, so that no declared shape can allocate memory. Plain JSON lists of numbers are packed by `struct`, which
rejects a value that is no number or out of range, and takes half the time of numpy (4096 floats: orjson 110 us, `struct` 35 us, numpy 64
us).
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array
from stoker.server.core.views import is_whole, kept

#: Tensors of at most this many elements are decoded and encoded on the event loop, in one or two milliseconds.
INLINE_STRINGS: Final = 4096
#: Memory of a short Python bytes object and its references in a list and an array, in bytes.
_ELEMENT_BYTES: Final = 64


def declared_count(shape: Iterable[int], most: int) -> int:
    """The number of elements that `shape` declares, at most `most`; 0 for an invalid shape, which is rejected later."""
    dims = list(shape)
    return min(math.prod(dims), most) if dims and len(dims) <= 64 and all(size > 0 for size in dims) else min(1, most)


def strings_cost(count: int, limits: Limits) -> int:
    """Memory overhead of `count` string elements in addition to their bytes.

    Raises:
        TooLarge: there are more elements than one request may hold.
    """
    if count > limits.string_elements:
        raise TooLarge(f"the request holds {count} elements of data-type BYTES, more than the {limits.string_elements} allowed")
    return count * _ELEMENT_BYTES


_LENGTH: Final = struct.Struct("<I")
#: Elements that are encoded in one step.
_STEP: Final = 16_384
#: Bytes of an array that are copied in one step.
_STEP_BYTES: Final = 1 << 20
#: Parts of larger memory up to this size, in bytes, are views, which copies in one step, in at most some milliseconds.
_VIEWED_BYTES: Final = 16 << 20
#: Messages up to this size are joined: a copy costs less than to send them in pieces.
_JOINED_BYTES: Final = 256 << 10
#: Requests of raw tensors up to this size are decoded on the event loop: the tensors are views, so that only the check of booleans reads
#: every byte.
INLINE_RAW_BYTES: Final = 4 << 20
Raw = bytes | memoryview
Serialised = bytes | list[Raw]
"""A message, or its pieces in order, whose views nothing writes to."""
#: Smaller pieces are joined with their neighbours.
_SMALL_PIECE_BYTES = 16 << 10


def array_from_bytes(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, raw: Raw) -> Array:
    """The array of `shape` (`count` elements) in `raw`: if the type permits, a read-only view of any alignment.

    Raises:
        SignatureMismatch: `raw` does not have exactly the size of `shape`.
    """
    datatype = spec.datatype
    size = len(raw)
    if datatype is DataType.BYTES:
        return _strings(check, spec, shape, count, raw)
    if size != count * datatype.item_bytes:
        raise check.byte_size(spec, count * datatype.item_bytes, size)
    if datatype is DataType.BOOL:
        # Any nonzero byte is true; numpy would keep values other than 0 and 1.
        octets: Array = np.ndarray(shape, np.uint8, raw)
        return octets != 0 if count and octets.max() > 1 else octets.view(np.bool_)
    # A slice of a message may have any alignment. Code that needs aligned elements copies the array.
    array: Array = np.ndarray(shape, datatype.numpy, raw)
    return array


def array_from_span(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, span: Span) -> Array:
    """As `array_from_bytes`, for a copy of `span`; a wrong size is rejected before the copy."""
    datatype = spec.datatype
    if datatype is not DataType.BYTES and span.byte_size != count * datatype.item_bytes:
        raise check.byte_size(spec, count * datatype.item_bytes, span.byte_size)
    return array_from_bytes(check, spec, shape, count, span.read())


def array_to_bytes(array: Array, datatype: DataType) -> bytes:
    """The array's bytes on the wire."""
    return b"".join(array_pieces(array, datatype)) if datatype is DataType.BYTES else array.tobytes()


def array_pieces(array: Array, datatype: DataType) -> list[Raw]:
    """The array's bytes on the wire, in pieces: a view, if possible.

    A copy of a view holds the GIL, so that large arrays that are part of larger memory (`core.views`) are copied in steps here.
    """
    if datatype is not DataType.BYTES:
        if array.size and array.flags.c_contiguous and (array.nbytes <= _VIEWED_BYTES or is_whole(array)):
            return [array.data.cast("B")]
        flat, step = array.reshape(-1), max(1, _STEP_BYTES // array.itemsize)
        return [flat[at : at + step].tobytes() for at in range(0, flat.size, step)]
    values: list[bytes | str] = array.reshape(-1).tolist()
    # Some thousand at a time: the lengths are objects too, and would take more memory than the strings.
    return [_with_lengths(values[at : at + _STEP]) for at in range(0, len(values), _STEP)]


def serialised(pieces: Sequence[Raw]) -> Serialised:
    """A message of `pieces`: joined, if it is small; else in pieces that may be kept until a client has read them, few of them small.

    Safe in a thread.
    """
    if sum(map(len, pieces)) <= _JOINED_BYTES:
        return b"".join(pieces)
    whole: list[Raw] = []
    small: list[Raw] = []
    for piece in pieces:
        if len(piece) < _SMALL_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            whole.append(b"".join(small))
            small = []
        whole.append(kept(piece))
    if small:
        whole.append(b"".join(small))
    return whole


def whole(message: Serialised) -> bytes:
    """`message` in one piece."""
    return message if isinstance(message, bytes) else b"".join(message)


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
        # Each element takes at least 4 bytes, so that a declared count cannot cause a read behind the data.
        raise check.element_count(spec, count, f"{size} bytes, too few for as many length prefixes")
    # Slices of bytes are elements; slices of a view would need another copy.
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


Packer = Callable[..., bytes]
#: Exceptions of a `Packer`.
UNPACKABLE: Final = (struct.error, OverflowError)

#: Types that JSON cannot represent: raw bits, or no common text form. As in Triton, both ways.
BINARY_ONLY: Final = frozenset({DataType.FP16, DataType.BF16})
#: Elements that are printed in one step.
PRINTED_AT_ONCE: Final = 65_536
#: `struct` format characters of the types whose elements are JSON numbers.
_PACKED: Final = {
    DataType.INT8: "b", DataType.INT16: "h", DataType.INT32: "i", DataType.INT64: "q",
    DataType.UINT8: "B", DataType.UINT16: "H", DataType.UINT32: "I", DataType.UINT64: "Q",
    DataType.FP32: "f", DataType.FP64: "d",
}  # fmt: skip
_FLOATS: Final = frozenset({DataType.FP32, DataType.FP64})
#: Names of the expected JSON types in Triton's error texts.
_TRITON_KINDS: Final = {DataType.BOOL: "boolean", DataType.BYTES: "string", DataType.FP32: "number", DataType.FP64: "number"}
_ACCEPTED: dict[DataType, tuple[frozenset[type], str]] = {
    **{kind: (frozenset({int}), f"integers of {8 * kind.numpy.itemsize} bits") for kind in DataType if kind.numpy.kind == "i"},
    **{kind: (frozenset({int}), f"unsigned integers of {8 * kind.numpy.itemsize} bits") for kind in DataType if kind.numpy.kind == "u"},
    DataType.BOOL: (frozenset({bool}), "true or false"),
    DataType.BYTES: (frozenset({str}), "strings"),
    **{kind: (frozenset({int, float}), "numbers") for kind in _FLOATS},
}


def array_from_json(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, data: Any) -> Array:
    """The array of `shape` (`count` elements) of the flat or nested list `data`, in row-major order.

    Raises:
        SignatureMismatch: the number of elements is wrong, or an element has a wrong type or is out of the datatype's range.
    """
    datatype = spec.datatype
    if datatype in BINARY_ONLY:
        raise SignatureMismatch(f"receiving {datatype.value} data via JSON is not supported, send input '{spec.name}' as binary data")
    if isinstance(data, np.ndarray):
        return _from_numbers(check, spec, shape, count, data)
    if not isinstance(data, list):
        raise SignatureMismatch(f"'data' of input '{spec.name}' must be an array")
    kinds = set(map(type, data))
    while kinds == {list}:
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    if not kinds <= _ACCEPTED[datatype][0]:
        raise _wrong_kind(spec)
    if len(data) != count:
        raise check.element_count(spec, count, len(data))
    if datatype is DataType.BYTES:
        return object_array([value.encode() for value in data], shape)
    try:
        with np.errstate(over="ignore"):
            array: Array = np.array(data, dtype=datatype.numpy)
    except OverflowError:
        raise _out_of_range(spec) from None
    if datatype is DataType.FP32 and float in kinds and _has_overflown(array, data):
        raise _out_of_range(spec)
    return array.reshape(shape)


def flattened(data: list[Any], most: int) -> list[Any] | None:
    """The elements of `data` in row-major order; None where it nests more than `most` lists, or lists beside elements."""
    while data and type(data[0]) is list:
        most -= 1
        if most < 0:
            return None
        if len(data) == 1:
            data = data[0]
        elif set(map(type, data)) == {list}:
            data = list(chain.from_iterable(data))
        else:
            return None
    return data


def packed(values: list[Any], datatype: DataType, text: bytes) -> bytes | None:
    """The elements that `text`, a JSON list without strings, holds as `values`; None where not all are numbers that `datatype` can hold."""
    pack = packer(datatype, len(values))
    if pack is None or _has_words(text):
        return None
    try:
        return pack(*values)
    except UNPACKABLE:
        return None


def packer(datatype: DataType, count: int) -> Packer | None:
    """Returns a function that packs `count` values, and raises `UNPACKABLE` if one is invalid for `datatype`; None: JSON has no such
    numbers.

    A packer of numbers accepts `true` and `false` as 1 and 0. Callers with many lists of the same length should keep the packer: creating
    it takes four times as long as packing sixteen numbers.
    """
    if datatype is DataType.BOOL:
        return partial(_packed_booleans, count)
    code = _PACKED.get(datatype)
    return None if code is None else struct.Struct(f"<{count}{code}").pack


def _packed_booleans(count: int, *values: object) -> bytes:
    if len(values) != count or not set(map(type, values)) <= {bool}:
        raise OverflowError
    return bytes(values)  # type: ignore[arg-type]


def _has_words(text: bytes) -> bool:
    """Whether `true` or `false` is among the values: `struct` would pack them as numbers."""
    return text.find(b"t") >= 0 or text.find(b"a") >= 0


def _from_numbers(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, numbers: Array) -> Array:
    """As `array_from_json`, for data that is a flat int64 or float64 array already."""
    datatype = spec.datatype
    if datatype not in _FLOATS and (datatype in (DataType.BOOL, DataType.BYTES) or numbers.dtype.kind == "f"):
        raise _wrong_kind(spec)
    if numbers.size != count:
        raise check.element_count(spec, count, numbers.size)
    if datatype not in _FLOATS:
        bounds = np.iinfo(datatype.numpy)
        if numbers.size and (int(numbers.min()) < bounds.min or int(numbers.max()) > bounds.max):
            raise _out_of_range(spec)
    with np.errstate(over="ignore"):
        array: Array = numbers.astype(datatype.numpy, copy=False)
    if datatype is DataType.FP32 and _has_overflown(array, numbers):
        raise _out_of_range(spec)
    return array.reshape(shape)


def _has_overflown(array: Array, given: Any) -> bool:
    """Whether a finite number of `given` has become an infinity of `array`."""
    infinite = np.isinf(array)
    return bool(infinite.any()) and bool(np.isfinite(np.asarray(given, dtype=np.float64)[infinite]).any())


def json_from_array(array: Array, datatype: DataType, output: str) -> orjson.Fragment | Array | list[str]:
    """An object that orjson (with OPT_SERIALIZE_NUMPY) prints as the flat list of `array`'s elements.

    Raises:
        InvalidRequest: JSON cannot represent these values.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype is DataType.BYTES:
        try:
            return [element if isinstance(element, str) else element.decode() for element in flat.tolist()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"output '{output}' holds bytes that are not UTF-8 text: ask for it as binary data") from None
    if datatype in BINARY_ONLY:
        raise unsendable(datatype, output)
    return orjson.Fragment(_printed(flat, datatype)) if datatype in _FLOATS and not bool(np.isfinite(flat).all()) else flat


def printed_numbers(array: Array) -> bytes | None:
    """The flat list of `array`'s elements, numbers or booleans, as text; None if one is not finite."""
    # `ravel` copies only arrays that are not contiguous.
    printed = orjson.dumps(array.ravel(), option=orjson.OPT_SERIALIZE_NUMPY)
    return None if printed.find(b"null") >= 0 else printed


def json_pieces(array: Array, datatype: DataType, output: str) -> list[bytes]:
    """Prints the list as text, for a large array of numbers.

    Printing it in one call would hold the GIL for seconds, also in a thread. The result is in pieces, so that it is copied only once.

    Raises:
        InvalidRequest: as `json_from_array`.
    """
    if datatype in BINARY_ONLY:
        raise unsendable(datatype, output)
    flat, step = np.ascontiguousarray(array).reshape(-1), PRINTED_AT_ONCE
    pieces = [b"["]
    for at in range(0, flat.size, step):
        pieces += (_printed(flat[at : at + step], datatype)[1:-1], b",")
    pieces[-1] = b"]"
    return pieces


def unsendable(datatype: DataType, output: str) -> InvalidRequest:
    """The error for an output that JSON cannot represent."""
    return InvalidRequest(f"sending {datatype.value} data via JSON is not supported, ask for output '{output}' as binary data")


def _printed(flat: Array, datatype: DataType) -> bytes:
    """The list, with NaN, Infinity and -Infinity as bare tokens, as Triton prints them; orjson prints null for each."""
    printed = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if datatype not in _FLOATS or bool(np.isfinite(flat).all()):
        return printed
    parts = printed.split(b"null")
    special = flat[~np.isfinite(flat)]
    tokens = ["NaN" if value != value else "Infinity" if value > 0 else "-Infinity" for value in special.tolist()]
    text = [parts[0]]
    for token, part in zip(tokens, parts[1:], strict=True):
        text.append(token.encode())
        text.append(part)
    return b"".join(text)


def _wrong_kind(spec: TensorSpec) -> SignatureMismatch:
    words = _ACCEPTED[spec.datatype][1]
    kind = _TRITON_KINDS.get(spec.datatype, "signed-integer" if spec.datatype.numpy.kind == "i" else "unsigned-integer")
    return SignatureMismatch(
        f"attempt to access JSON non-{kind} as {kind}: 'data' of input '{spec.name}' must hold only {words} "
        f"for data-type {spec.datatype.value}"
    )


def _out_of_range(spec: TensorSpec) -> SignatureMismatch:
    return SignatureMismatch(f"'data' of input '{spec.name}' holds a value outside the range of {spec.datatype.value}")
