"""A serialised PredictRequest taken apart before it is parsed: counts held to the limits, memory priced, tensor contents cut out.

`tensor_content`, which is most of a large request, lies three messages deep. It is never copied: what is parsed is the request with the
contents left out, and the contents stay views of the bytes that came.
"""

from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.core.limits import Limits
from stoker.server.core.wire_walk import CONTENTS_FIELDS, FIELD_BYTES, WireWalk

#: Messages up to this size are parsed as they are: not even the worst of them becomes large.
SMALL_BYTES = 4096
# PredictRequest
_INPUTS = 2 << 3 | LENGTH
#: The field of PredictRequest that names outputs: Adlik's map `output_filter`.
OUTPUT_FILTER = 4
# an entry of a map
_KEY, _VALUE = (number << 3 | LENGTH for number in (1, 2))
# TensorProto
_SHAPE, _CONTENT, _STRINGS = (number << 3 | LENGTH for number in (2, 4, 8))
_DIM = 2 << 3 | LENGTH
#: Of typed values, by field: bytes of an element in memory where the wire holds varints, which may be as short as one byte.
_VARINT_ITEM_BYTES = {7: 4, 10: 8, 11: 1, 13: 4, 16: 4, 17: 8}


class PredictWire(NamedTuple):
    """A serialised PredictRequest, taken apart.

    Attributes:
        rest: The message without the contents that were cut out.
        contents: By input, its `tensor_content`: a view of the message.
        cost_bytes: Memory that parsing `rest` takes.
    """

    rest: bytes
    contents: dict[str, memoryview]
    cost_bytes: int


def split_predict_request(data: bytes, limits: Limits, output_filter: int = OUTPUT_FILTER) -> PredictWire:
    """Takes a serialised PredictRequest apart, Adlik's or TensorFlow Serving's, whose `output_filter` has another number.

    Raises:
        InvalidRequest: it is no message, names an input twice, or holds more inputs, outputs or dimensions than allowed.
        TooLarge: it holds too many fields, or parsing it would take more than the whole budget of bytes in flight.
    """
    return _Walk(data, limits).predict_request(output_filter << 3 | LENGTH)


class _Walk(WireWalk):
    def __init__(self, data: bytes, limits: Limits) -> None:
        super().__init__(data)
        self._limits = limits
        self._view = memoryview(data)
        self._cost = 0
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
        return PredictWire(rest, self._contents, cost)

    def _input(self, at: int, stop: int, names: set[str]) -> bytes:
        """One entry of `inputs`, without its content."""
        name, tensor, content = b"", b"", None
        for tag, _, value, end in self.fields(at, stop):
            if tag == _KEY:
                name = bytes(self._view[value:end])
            elif tag == _VALUE:
                # A message that comes twice is merged: its fields follow each other.
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
