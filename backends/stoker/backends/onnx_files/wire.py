"""Reads protobuf's wire format field by field, without generated code and without trusting a byte of it.

A message is a run of fields, each a varint tag (field number and wire type) and a payload. Payloads are reported as byte ranges, so
whoever reads decides what to descend into; a gigabyte of weights is one range that is never touched. Everything that could go on
for too long is bounded: varints by ten bytes, nesting by protobuf's own hundred, the number of fields by `MAX_FIELDS`.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

#: As deep as protobuf's own readers go; deeper files are unreadable to everyone.
MAX_DEPTH = 100
#: Fields looked at in one file before it is refused: some seconds of reading, and twenty times what the largest known models need.
MAX_FIELDS = 4_000_000

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5


class WireError(Exception):
    """The bytes are no protobuf message; the text says what is wrong and at which byte."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        number: Its number in the .proto file.
        value: The varint's value, unsigned; 0 for other wire types.
        start, end: Byte range of the payload.
        is_message: Whether the payload has a length of its own: a message, string, bytes, or packed numbers.
    """

    number: int
    value: int
    start: int
    end: int
    is_message: bool

    @property
    def signed(self) -> int:
        """The varint as the int64 or int32 it stands for."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class WireReader:
    """Walks one file's bytes."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._seen = 0

    def fields(self, start: int, end: int, depth: int) -> Iterator[Field]:
        """The fields of the message in bytes `start`..`end`, which lies `depth` messages deep.

        Raises:
            WireError: (while iterating) those bytes are no message.
        """
        if depth > MAX_DEPTH:
            raise WireError(f"messages nested more than {MAX_DEPTH} deep at byte {start}")
        at = start
        while at < end:
            self._seen += 1
            if self._seen > MAX_FIELDS:
                raise WireError(f"more than {MAX_FIELDS} fields")
            tag_at = at
            tag, at = self._varint(at, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise WireError(f"field number 0 at byte {tag_at}")
            value = 0
            begin = at
            if kind == _VARINT:
                value, at = self._varint(at, end)
            elif kind == _LENGTH:
                length, begin = self._varint(at, end)
                at = begin + length
            elif kind == _I32:
                at += 4
            elif kind == _I64:
                at += 8
            else:
                raise WireError(f"wire type {kind} in field {number} at byte {tag_at}")
            if at > end:
                place = "the file ends" if end == len(self._data) else "its message ends"
                raise WireError(f"field {number} at byte {tag_at} should reach to byte {at}, but {place} at byte {end}")
            yield Field(number, value, begin, at, kind == _LENGTH)

    def text(self, field: Field) -> str:
        """The field's payload as a string.

        Raises:
            WireError: it is not UTF-8.
        """
        try:
            return self._data[field.start : field.end].decode()
        except UnicodeDecodeError:
            raise WireError(f"text that is not UTF-8 in field {field.number} at byte {field.start}") from None

    def numbers(self, field: Field) -> Iterator[int]:
        """The field's number, or those packed in its payload, as int64.

        Raises:
            WireError: (while iterating) the payload is cut off.
        """
        at = field.start
        if not field.is_message:
            yield field.signed
        while field.is_message and at < field.end:
            number, at = self._varint(at, field.end)
            yield number - (1 << 64) if number >> 63 else number

    def contains(self, field: Field, needle: bytes) -> bool:
        """Whether `needle` occurs in the payload; far cheaper than walking it."""
        return self._data.find(needle, field.start, field.end) >= 0

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise WireError(f"a number is cut off at byte {end}")
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
        raise WireError(f"a number longer than ten bytes at byte {at - 10}")


def encoded_field(number: int, payload: bytes) -> bytes:
    """A field of that number whose payload is a message, text or bytes."""
    return _encoded_varint(number << 3 | _LENGTH) + _encoded_varint(len(payload)) + payload


def encoded_number(number: int, value: int) -> bytes:
    """A field of that number that holds `value`, which is not negative."""
    return _encoded_varint(number << 3 | _VARINT) + _encoded_varint(value)


def _encoded_varint(value: int) -> bytes:
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
