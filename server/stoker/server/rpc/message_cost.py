"""The memory that a serialised message would take, estimated from the wire before any of it is parsed.

A protobuf message is an amplifier: two bytes are an empty tensor that takes sixty. So a message of more than a few KiB is walked first,
field by field, hopping over their contents: the counts are held to the limits, and what parsing will take is priced. Raw tensor contents,
which are most of a large request, are cut out on the way and never copied; only what is left is parsed.
"""

from itertools import islice
from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.wire import LENGTH, VARINT, VARINT_BYTES
from stoker.server.core.byte_budget import CONTENTS_FIELDS, FIELD_BYTES, WireWalk
from stoker.server.core.limits import Limits

#: Messages up to this size are parsed as they are: not even the worst of them becomes large.
SMALL_BYTES = 4096
# Tags: a field's number and how it is written. A field written otherwise is an unknown one to the parser.
_ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (number << 3 | LENGTH for number in (3, 4, 5, 6, 7))
#: Fields among which the id of a rejected request is looked for: serialisers write fields by number, which puts it among the first three.
_ID_FIELDS = 64
_TENSOR_SHAPE = (3 << 3 | VARINT, 3 << 3 | LENGTH)
_TENSOR_PARAMETERS, _TENSOR_CONTENTS = (number << 3 | LENGTH for number in (4, 5))
_OUTPUT_PARAMETERS = 2 << 3 | LENGTH
_BYTES_CONTENTS = 8 << 3 | LENGTH
#: Of typed contents, by field: bytes of an element in memory where the wire holds varints, which may be as short as one byte.
_VARINT_ITEM_BYTES = {2: 4, 3: 8, 4: 4, 5: 8}


class InferWire(NamedTuple):
    """A serialised ModelInferRequest, taken apart.

    Attributes:
        rest: The message without its raw contents.
        raws: The raw contents in order, views of the message.
        cost_bytes: Memory that parsing `rest` takes.
    """

    rest: bytes | memoryview
    raws: list[memoryview]
    cost_bytes: int


def split_infer_request(data: bytes | memoryview, limits: Limits) -> InferWire:
    """Takes a serialised ModelInferRequest apart.

    Raises:
        InvalidRequest: it is no message, or holds more tensors, outputs, parameters or dimensions than allowed.
        TooLarge: it holds too many fields, or parsing it would take more than the whole budget of bytes in flight.
    """
    return _Walk(data, limits).infer_request()


def request_id_of(data: bytes | memoryview, limits: Limits) -> str:
    """The id in a serialised ModelInferRequest, whatever else is wrong with it; empty where it has none, or one that is not allowed."""
    try:
        for tag, _, value, end in islice(WireWalk(data).fields(0, len(data)), _ID_FIELDS):
            if tag == _ID:
                # No character takes more than four bytes.
                request_id = bytes(data[value:end]).decode() if end - value <= 4 * limits.id_length else ""
                return request_id if len(request_id) <= limits.id_length else ""
    except (InvalidRequest, UnicodeDecodeError):
        pass
    return ""


def check_control_request(data: bytes, limits: Limits) -> None:
    """Rejects any other serialised request that would become much larger than its bytes.

    Raises:
        InvalidRequest: it is no message, or holds more fields than parameters are allowed.
    """
    if len(data) > SMALL_BYTES:
        walk = _Walk(data, limits)
        count = sum(1 for _ in walk.fields(0, len(data)))
        # Beside the parameters there are only a few plain fields.
        if count > limits.parameter_count + 16:
            raise InvalidRequest(f"request has {count} parameters, more than the {limits.parameter_count} allowed")


class _Walk(WireWalk):
    """One pass over one message."""

    def __init__(self, data: bytes | memoryview, limits: Limits) -> None:
        super().__init__(data)
        self._limits = limits

    def infer_request(self) -> InferWire:
        limits, data, view = self._limits, self._bytes, memoryview(self._bytes)
        raws: list[memoryview] = []
        kept: list[memoryview] = []
        kept_from = inputs = outputs = parameters = cost = 0
        for tag, begin, value, end in self.fields(0, len(data)):
            if tag == _RAW:
                raws.append(view[value:end])
                kept.append(view[kept_from:begin])
                kept_from = end
                _bound(len(raws), limits.tensor_count, "raw_input_contents")
            elif tag == _INPUTS:
                inputs += 1
                _bound(inputs, limits.tensor_count, "inputs")
                cost += self._tensor(value, end)
            elif tag == _OUTPUTS:
                outputs += 1
                _bound(outputs, limits.output_count, "outputs")
                cost += self._output(value, end)
            elif tag == _PARAMETERS:
                parameters += 1
                _bound(parameters, limits.parameter_count, "parameters")
            cost += FIELD_BYTES
        kept.append(view[kept_from:])
        rest = b"".join(kept) if raws else data
        cost += len(rest)
        if cost > limits.bytes_in_flight:
            raise TooLarge(
                f"the request of {len(data)} bytes would take {cost} bytes when parsed; send large tensors as raw_input_contents"
            )
        return InferWire(rest, raws, cost)

    def _tensor(self, at: int, stop: int) -> int:
        """Memory of a tensor's fields beside their bytes."""
        limits = self._limits
        dims = parameters = cost = 0
        for tag, _, value, end in self.fields(at, stop):
            if tag in _TENSOR_SHAPE:
                # One entry, or a packed run of them.
                dims += 1
                if dims > limits.dims_count or end - value > limits.dims_count * VARINT_BYTES:
                    raise InvalidRequest(f"an input has more than the {limits.dims_count} dimensions allowed")
            elif tag == _TENSOR_PARAMETERS:
                parameters += 1
                _bound(parameters, limits.parameter_count, "parameters of one input")
            elif tag == _TENSOR_CONTENTS:
                cost += self._contents(value, end)
            cost += FIELD_BYTES
        return cost

    def _output(self, at: int, stop: int) -> int:
        """Memory of a requested output's fields beside their bytes."""
        parameters = cost = 0
        for tag, *_ in self.fields(at, stop):
            if tag == _OUTPUT_PARAMETERS:
                parameters += 1
                _bound(parameters, self._limits.parameter_count, "parameters of one output")
            cost += FIELD_BYTES
        return cost

    def _contents(self, at: int, stop: int) -> int:
        """The memory that typed contents take beside their bytes."""
        cost = 0
        for _ in range(CONTENTS_FIELDS):
            if at == stop:
                return cost
            tag, _, value, end = self.field(at, stop)
            cost += self.values_cost(tag, value, end, _BYTES_CONTENTS, _VARINT_ITEM_BYTES)
            at = end
        # Many short strings, or numbers sent one by one.
        return cost + self.rest_cost(at, stop)


def _bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidRequest(f"request has more than the {most} {what} allowed")
