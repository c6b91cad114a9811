"""Estimates from the wire format how much memory a serialised message will take once parsed.

Parsing can multiply the size: an empty tensor has two bytes on the wire and takes sixty in memory. So the fields of a message of more than
a few KiB are scanned first, without their contents: their counts are checked against the limits, and the memory for parsing is estimated.
The scan cuts out raw tensor contents, most of a large request, without a copy; only the remainder is parsed.
"""

from itertools import islice
from typing import Final

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.wire import LENGTH, VARINT, VARINT_BYTES
from stoker.server.core.byte_budget import CONTENTS_FIELDS, FIELD_BYTES, WireWalk
from stoker.server.core.limits import Limits

#: Messages up to this size are parsed without a scan: even in the worst case they take little memory.
SMALL_BYTES: Final = 4096
# Tags: field number and wire type. The parser takes a field with another wire type as unknown.
_ID: Final = 3 << 3 | LENGTH
_PARAMETERS: Final = 4 << 3 | LENGTH
_INPUTS: Final = 5 << 3 | LENGTH
_OUTPUTS: Final = 6 << 3 | LENGTH
_RAW: Final = 7 << 3 | LENGTH
#: Number of fields that are searched for the id of a rejected request: serialisers write fields by number, and the id is the third.
_ID_FIELDS: Final = 64
_TENSOR_SHAPE: Final = (3 << 3 | VARINT, 3 << 3 | LENGTH)
_TENSOR_PARAMETERS: Final = 4 << 3 | LENGTH
_TENSOR_CONTENTS: Final = 5 << 3 | LENGTH
_OUTPUT_PARAMETERS: Final = 2 << 3 | LENGTH
_BYTES_CONTENTS: Final = 8 << 3 | LENGTH
#: Bytes of one element in memory, by field of typed contents: on the wire, a varint may take only one byte.
_VARINT_ITEM_BYTES: Final = {2: 4, 3: 8, 4: 4, 5: 8}


class InferWire:
    """A serialised ModelInferRequest, taken apart.

    Attributes:
        rest: The message without its raw contents.
        raws: The raw contents in order, views of the message.
        cost_bytes: Memory that parsing `rest` takes.
        lead_bytes: Where the first raw contents begin in the message; 0: there are none.
    """

    __slots__ = ("cost_bytes", "lead_bytes", "raws", "rest")

    def __init__(self, rest: bytes | memoryview, raws: list[memoryview], cost_bytes: int, lead_bytes: int) -> None:
        self.rest = rest
        self.raws = raws
        self.cost_bytes = cost_bytes
        self.lead_bytes = lead_bytes


def split_infer_request(data: bytes | memoryview, limits: Limits) -> InferWire:
    """Takes a serialised ModelInferRequest apart.

    Raises:
        InvalidRequest: `data` is no such message, or has more tensors, outputs, parameters or dimensions than allowed.
        TooLarge: the message has too many fields, or parsing it would take more than the whole byte budget.
    """
    return _Walk(data, limits).infer_request()


def request_id_of(data: bytes | memoryview, limits: Limits) -> str:
    """The id in a serialised ModelInferRequest that may be invalid; empty if it has none, or one that is not allowed."""
    try:
        for tag, _, value, end in islice(WireWalk(data).fields(0, len(data)), _ID_FIELDS):
            if tag == _ID:
                # No character takes more than four bytes.
                request_id = bytes(data[value:end]).decode() if end - value <= 4 * limits.id_length else ""
                return request_id if len(request_id) <= limits.id_length else ""
    except (InvalidRequest, UnicodeDecodeError):
        pass
    return ""


def check_control_request(data: bytes | memoryview, limits: Limits) -> None:
    """Rejects a serialised control request that would take much more memory than its bytes.

    Raises:
        InvalidRequest: the data is no message, or has more fields than a request may have parameters.
    """
    if len(data) > SMALL_BYTES:
        walk = _Walk(data, limits)
        count = sum(1 for _ in walk.fields(0, len(data)))
        # Beside the parameters there are only a few plain fields.
        if count > limits.parameter_count + 16:
            raise InvalidRequest(f"request has {count} parameters, more than the {limits.parameter_count} allowed")


class _Walk(WireWalk):
    """Scans one message."""

    def __init__(self, data: bytes | memoryview, limits: Limits) -> None:
        super().__init__(data)
        self._limits = limits

    def infer_request(self) -> InferWire:
        limits, data, view = self._limits, self._bytes, memoryview(self._bytes)
        raws: list[memoryview] = []
        kept: list[memoryview] = []
        kept_from = inputs = outputs = parameters = cost = lead = 0
        for tag, begin, value, end in self.fields(0, len(data)):
            if tag == _RAW:
                raws.append(view[value:end])
                lead = lead or value
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
        return InferWire(rest, raws, cost, lead)

    def _tensor(self, at: int, stop: int) -> int:
        """The memory of a tensor's fields in addition to their bytes."""
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
        """The memory of a requested output's fields in addition to their bytes."""
        parameters = cost = 0
        for tag, *_ in self.fields(at, stop):
            if tag == _OUTPUT_PARAMETERS:
                parameters += 1
                _bound(parameters, self._limits.parameter_count, "parameters of one output")
            cost += FIELD_BYTES
        return cost

    def _contents(self, at: int, stop: int) -> int:
        """The memory of typed contents in addition to their bytes."""
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
