"""Hops over the fields of a serialised protobuf message without parsing it: the ground on which requests are judged by their bytes.

A protobuf message is an amplifier: two bytes are an empty message that takes sixty. What the fields of a message will take in memory is
told here from the wire, before any of it is parsed.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from stoker.backends.api.errors import InvalidRequest, TooLarge

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
#: What one message, map entry or string in a repeated field takes, roundly; arrays double as they grow, and leave the old one behind.
FIELD_BYTES, STRING_BYTES, GROWTH = 128, 16, 2
#: No varint is longer.
VARINT_BYTES = 10
#: All fields that are looked at in one message; the limits on tensors and parameters allow less than that in any sane mix.
_MOST_FIELDS = 65_536
#: Typed contents of more fields than that are priced by their length alone.
CONTENTS_FIELDS = 4096


class WireWalk:
    """One pass over one message; every method raises InvalidRequest where the bytes are no message."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self._left = _MOST_FIELDS

    def fields(self, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(tag, where it begins, where its value begins, where it ends) of each field from `at` to `stop`."""
        while at < stop:
            self._left -= 1
            if self._left < 0:
                raise TooLarge(f"the message has more than {_MOST_FIELDS} fields")
            field = self.field(at, stop)
            yield field
            at = field[3]

    def field(self, begin: int, stop: int) -> tuple[int, int, int, int]:
        """The field that begins at `begin`, as `fields` gives it."""
        tag, at = self.varint(begin, stop)
        kind = tag & 7
        value = at
        if kind == LENGTH:
            length, value = self.varint(at, stop)
            end = value + length
        elif kind == VARINT:
            _, end = self.varint(at, stop)
        elif kind == FIXED64:
            end = at + 8
        elif kind == FIXED32:
            end = at + 4
        else:
            raise invalid_message()
        if end > stop:
            raise invalid_message()
        return tag, begin, value, end

    def varint(self, at: int, stop: int) -> tuple[int, int]:
        data = self._data
        value = shift = 0
        for byte in data[at : min(stop, at + VARINT_BYTES)]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise invalid_message()

    def packed_cost(self, value: int, end: int, item_bytes: int) -> int:
        """What a run of varints takes as numbers of `item_bytes` each, beside its own bytes."""
        last_bytes = np.frombuffer(self._data, np.uint8, end - value, value) < 0x80
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


def invalid_message() -> InvalidRequest:
    """The error for bytes that are no message."""
    return InvalidRequest("the request is not a valid protobuf message")


def encoded_varint(number: int) -> bytes:
    """`number` (0 or more) as the wire has it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
