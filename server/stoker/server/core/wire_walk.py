"""Prices the fields of a serialised request before it is parsed.

A protobuf message is an amplifier: two bytes are an empty message that takes sixty. The server computes from the wire what the fields of
a message will take in memory, before it parses any of it.
"""

from collections.abc import Mapping

import numpy as np

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.wire import WireReader

#: What one message, map entry or string in a repeated field takes, roughly; arrays double as they grow, and leave the old one behind.
FIELD_BYTES, STRING_BYTES, GROWTH = 128, 16, 2
#: All fields that are read in one message; the limits on tensors and parameters allow less than that in any sane mix.
_MAX_FIELDS = 65_536
#: Typed contents of more fields than that are priced by their length alone.
CONTENTS_FIELDS = 4096


class WireWalk(WireReader):
    """One pass over one request; every method raises InvalidRequest where the bytes are not a message."""

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__(data, max_fields=_MAX_FIELDS, failure=invalid_message, too_many=TooLarge)
        self._bytes = data

    def packed_cost(self, value: int, end: int, item_bytes: int) -> int:
        """The bytes that a run of varints takes as numbers of `item_bytes` each, beside its own bytes."""
        last_bytes = np.frombuffer(self._bytes, np.uint8, end - value, value) < 0x80
        return int(np.count_nonzero(last_bytes)) * item_bytes * GROWTH

    def values_cost(self, tag: int, value: int, end: int, strings_tag: int, varint_item_bytes: Mapping[int, int]) -> int:
        """What one field of typed tensor values takes beside its bytes; `varint_item_bytes` says which fields hold varints."""
        if tag == strings_tag:
            return STRING_BYTES * GROWTH
        item_bytes = varint_item_bytes.get(tag >> 3)
        return 0 if item_bytes is None else self.packed_cost(value, end, item_bytes)

    def rest_cost(self, at: int, stop: int) -> int:
        """What typed values in fields too many to look at take at most: no field takes less than two bytes."""
        return (stop - at) // 2 * STRING_BYTES * GROWTH


def invalid_message(_reason: str = "") -> InvalidRequest:
    """The error for bytes that are not a message."""
    return InvalidRequest("the request is not a valid protobuf message")
