"""TensorFlow's TensorProto, which TensorFlow Serving's and Adlik's messages carry: element types, typed values, the wire.

A serialised PredictRequest is split before it is parsed: counts are checked against the limits, memory is estimated, and every
`tensor_content` is cut out. `tensor_content`, most of a large request, lies three messages deep and is never copied: the parser gets the
request without the contents, and the contents stay views of the message.

TensorProtos may leave out values that repeat, and a list of Examples may have a context that belongs to each Example. A few bytes on the
wire may then expand to any size in memory: the expansion is bounded and reserved before it is allocated.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.tensors import Raw, object_array
from stoker.server.core.byte_budget import CONTENTS_FIELDS, FIELD_BYTES, WireWalk
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array
from stoker.server.pb.tensorflow.core.framework import types_pb2


def repeated_bytes(spec: TensorSpec, value: Any, times: int) -> int:
    """Memory of `value` repeated `times` times as elements of the input `spec`. Strings count in full: backends copy each element."""
    return times * (spec.datatype.numpy.itemsize + (len(value) if spec.datatype.is_bytes else 0))


def check_expansion(grown_bytes: int, name: str, limits: Limits) -> None:
    """Rejects a request whose repeated values take `grown_bytes`, up to those of the input `name`.

    Raises:
        TooLarge: the expansion exceeds the limit of one request, so that a retry is useless.
    """
    if grown_bytes > limits.expansion_bytes:
        raise TooLarge(
            f"input '{name}': values that are given once for many elements take {grown_bytes} bytes, more than the "
            f"{limits.expansion_bytes} that one request may take (--limit expansion_bytes): send every element"
        )


_ENUM_NAMES: Final = {
    DataType.BOOL: "DT_BOOL",
    DataType.UINT8: "DT_UINT8",
    DataType.UINT16: "DT_UINT16",
    DataType.UINT32: "DT_UINT32",
    DataType.UINT64: "DT_UINT64",
    DataType.INT8: "DT_INT8",
    DataType.INT16: "DT_INT16",
    DataType.INT32: "DT_INT32",
    DataType.INT64: "DT_INT64",
    DataType.FP16: "DT_HALF",
    DataType.FP32: "DT_FLOAT",
    DataType.FP64: "DT_DOUBLE",
    DataType.BF16: "DT_BFLOAT16",
    DataType.BYTES: "DT_STRING",
}
#: TensorFlow's enum number of each element type.
NUMBERS: dict[DataType, Any] = {datatype: types_pb2.DataType.Value(name) for datatype, name in _ENUM_NAMES.items()}
#: The element type of a tensor that uses the model's type.
UNSAID: Final = types_pb2.DT_INVALID

_TYPE_NAMES: Final[Mapping[int, str]] = {number: name.removeprefix("DT_").lower() for name, number in types_pb2.DataType.items()}
#: The field of TensorProto that holds typed values of each element type.
VALUE_FIELDS: Mapping[DataType, str] = {
    DataType.FP16: "half_val",
    DataType.BF16: "half_val",
    DataType.FP32: "float_val",
    DataType.FP64: "double_val",
    DataType.INT8: "int_val",
    DataType.INT16: "int_val",
    DataType.INT32: "int_val",
    DataType.UINT8: "int_val",
    DataType.UINT16: "int_val",
    DataType.INT64: "int64_val",
    DataType.BOOL: "bool_val",
    DataType.UINT32: "uint32_val",
    DataType.UINT64: "uint64_val",
    DataType.BYTES: "string_val",
}
#: Types that the wire format holds in a wider field, so that values may be out of range.
_NARROW: Final = frozenset({DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16})
_HALVES: Final = frozenset({DataType.FP16, DataType.BF16})


class TensorFields(NamedTuple):
    """A TensorProto of either protocol.

    Attributes:
        dtype: TensorFlow's number of the element type; 0: the model's type.
        shape: With the batch dimension; None: the model's shape.
        content: Raw little-endian bytes; empty if there are none.
        values: Typed values by field name, only fields that hold some: arrays or sequences of numbers, or of `bytes` for `string_val`.
    """

    dtype: int
    shape: tuple[int, ...] | None
    content: Raw
    values: Mapping[str, Any]


def shown_type(number: int) -> str:
    """The element type as `DT_FLOAT (1)`, or only the number if TensorFlow has no such type."""
    known = types_pb2.DataType.DESCRIPTOR.values_by_number.get(number)
    return f"{number}" if known is None else known.name


def type_name(datatype: DataType) -> str:
    """TensorFlow's name of an element type in error texts, such as `float`."""
    return _TYPE_NAMES[NUMBERS[datatype]]


def values_array(spec: TensorSpec, field: str, given: Any) -> Array:
    """The flat array of the typed values `given` in `field`. Safe in a thread.

    Raises:
        InvalidRequest: a value is outside the range of the element type.
    """
    datatype = spec.datatype
    if datatype is DataType.BYTES:
        return object_array(list(given), (len(given),))
    if datatype in _HALVES:
        bits = np.array(given, dtype=np.int64)
        if bool((bits < 0).any()) or bool((bits > 0xFFFF).any()):
            raise InvalidRequest(f"input '{spec.name}': {field} holds numbers that are not 16 bits, 0 to 65535")
        half: Array = bits.astype(np.uint16).view(datatype.numpy)
        return half
    if datatype in _NARROW:
        wide = np.array(given, dtype=np.int64)
        bounds = np.iinfo(datatype.numpy)
        if bool((wide < bounds.min).any()) or bool((wide > bounds.max).any()):
            raise InvalidRequest(
                f"input '{spec.name}': {field} holds values outside the range of {shown_type(NUMBERS[datatype])}, "
                f"{bounds.min} to {bounds.max}"
            )
        narrow: Array = wide.astype(datatype.numpy)
        return narrow
    array: Array = np.asarray(given, dtype=datatype.numpy)
    return array


#: Messages up to this size are parsed without a scan: even in the worst case they take little memory.
SMALL_BYTES: Final = 4096
# PredictRequest
_INPUTS: Final = 2 << 3 | LENGTH
#: The field of PredictRequest that names outputs: Adlik's map `output_filter`.
OUTPUT_FILTER: Final = 4
# an entry of a map
_KEY: Final = 1 << 3 | LENGTH
_VALUE: Final = 2 << 3 | LENGTH
# TensorProto
_SHAPE: Final = 2 << 3 | LENGTH
_CONTENT: Final = 4 << 3 | LENGTH
_STRINGS: Final = 8 << 3 | LENGTH
_DIM: Final = 2 << 3 | LENGTH
#: Bytes of one element in memory, by field of typed values: on the wire, a varint may take only one byte.
_VARINT_ITEM_BYTES: Final = {7: 4, 10: 8, 11: 1, 13: 4, 16: 4, 17: 8}


class PredictWire(NamedTuple):
    """A serialised PredictRequest, split into contents and remainder.

    Attributes:
        rest: The message without the contents that were cut out.
        contents: The `tensor_content` of each input: a view of the message.
        cost_bytes: Memory that parsing `rest` takes.
        lead_bytes: Where the first content begins in the message; 0: there is none.
    """

    rest: bytes
    contents: dict[str, memoryview]
    cost_bytes: int
    lead_bytes: int


def split_predict_request(data: Raw, limits: Limits, output_filter: int = OUTPUT_FILTER) -> PredictWire:
    """Splits a serialised PredictRequest of Adlik or TensorFlow Serving; their `output_filter` fields have different numbers.

    Raises:
        InvalidRequest: the data is no message, names an input twice, or has more inputs, outputs or dimensions than allowed.
        TooLarge: the message has too many fields, or parsing it would take more than the whole byte budget.
    """
    return _Walk(data, limits).predict_request(output_filter << 3 | LENGTH)


class _Walk(WireWalk):
    def __init__(self, data: Raw, limits: Limits) -> None:
        super().__init__(data)
        self._limits = limits
        self._view = memoryview(data)
        self._cost = 0
        self._lead_bytes = 0
        self._contents: dict[str, memoryview] = {}

    def predict_request(self, output_filter: int) -> PredictWire:
        data, limits = self._bytes, self._limits
        kept: list[bytes | memoryview] = []
        names: set[str] = set()
        outputs = 0
        for tag, begin, value, end in self.fields(0, len(data)):
            self._cost += FIELD_BYTES
            if tag == _INPUTS:
                kept.append(self._input(value, end, names))
                if len(names) > limits.tensor_count:
                    raise InvalidRequest(f"request has more than the {limits.tensor_count} inputs allowed")
                continue
            if tag == output_filter:
                outputs += 1
                if outputs > limits.output_count:
                    raise InvalidRequest(f"request asks for more than the {limits.output_count} outputs allowed")
            kept.append(self._view[begin:end])
        rest = b"".join(kept)
        cost = self._cost + len(rest)
        if cost > limits.bytes_in_flight:
            raise TooLarge(f"the request of {len(data)} bytes would take {cost} bytes when parsed; send large tensors as tensor_content")
        return PredictWire(rest, self._contents, cost, self._lead_bytes)

    def _input(self, at: int, stop: int, names: set[str]) -> bytes:
        """One entry of `inputs`, without its content."""
        name, tensor, content = b"", b"", None
        for tag, _, value, end in self.fields(at, stop):
            if tag == _KEY:
                name = bytes(self._view[value:end])
            elif tag == _VALUE:
                # A field that occurs twice is merged: the contents are concatenated.
                piece, found = self._tensor(value, end)
                tensor += piece
                content = content if found is None else found
        key = name.decode(errors="replace")
        if key in names:
            raise InvalidRequest(f"input '{key[:128]}' is given twice")
        names.add(key)
        if content is not None:
            self._contents[key] = content
        return _field(_INPUTS, _field(_KEY, name) + _field(_VALUE, tensor))

    def _tensor(self, at: int, stop: int) -> tuple[bytes, memoryview | None]:
        """A TensorProto without its content, and the content."""
        kept: list[bytes | memoryview] = []
        content: memoryview | None = None
        for _ in range(CONTENTS_FIELDS):
            if at == stop:
                break
            tag, begin, value, end = self.field(at, stop)
            at = end
            self._cost += FIELD_BYTES
            if tag == _CONTENT:
                content = self._view[value:end]
                self._lead_bytes = self._lead_bytes or value
                continue
            kept.append(self._view[begin:end])
            if tag == _SHAPE:
                self._shape(value, end)
            else:
                self._cost += self.values_cost(tag, value, end, _STRINGS, _VARINT_ITEM_BYTES)
        # Many short strings, or numbers sent one by one.
        self._cost += self.rest_cost(at, stop)
        kept.append(self._view[at:stop])
        return b"".join(kept), content

    def _shape(self, at: int, stop: int) -> None:
        dims = 0
        for tag, *_ in self.fields(at, stop):
            self._cost += FIELD_BYTES
            dims += tag == _DIM
            if dims > self._limits.dims_count:
                raise InvalidRequest(f"an input has more than the {self._limits.dims_count} dimensions allowed")


def _field(tag: int, value: bytes) -> bytes:
    return encoded_varint(tag) + encoded_varint(len(value)) + value
