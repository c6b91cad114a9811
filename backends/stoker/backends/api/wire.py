"""Reads protobuf's wire format field by field, without generated code and without trusting any byte of it.

A message is a run of fields: a varint tag (field number and wire type) and a payload. The walker reports payloads as byte ranges, so
the caller decides which of them to read into; a gigabyte of weights is one range that is never touched. Every loop is bounded: a varint
by ten bytes, nesting by protobuf's own limit of 100, the number of fields by the caller.
"""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
#: No varint is longer.
VARINT_BYTES = 10
#: The nesting limit of protobuf's own parsers.
MAX_DEPTH = 100
#: Default limit of fields in one message: some seconds of reading, and twenty times what the largest known ONNX models need.
MAX_FIELDS = 4_000_000

_UINT64 = (1 << 64) - 1


class WireError(Exception):
    """The bytes are not a protobuf message; the text says what is wrong and at which byte."""


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
        """The varint as the int64 or int32 that it encodes."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class WireReader:
    """Walks the bytes of one message, once or several times."""

    def __init__(
        self,
        data: mmap.mmap | bytes | memoryview,
        *,
        noun: str = "message",
        max_fields: int = MAX_FIELDS,
        failure: Callable[[str], Exception] = WireError,
        too_many: Callable[[str], Exception] | None = None,
    ) -> None:
        """Args:
        data: The bytes.
        noun: What the bytes are, for the error texts: `file`, `message`.
        max_fields: Limit of fields in all walks of this reader together.
        failure: Makes the error for bytes that are not a message, from its text.
        too_many: Makes the error for more than `max_fields` fields; default `failure`.
        """
        self._data = data
        self._noun = noun
        self._max_fields = max_fields
        self._left = max_fields
        self._failure = failure
        self._too_many = too_many or failure

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """(tag, first byte, first byte of the payload, end) of each field in bytes `start`..`end`.

        Raises:
            WireError: (while iterating; or what `failure` makes) these bytes are not a message.
        """
        at = start
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise self._too_many(f"a {self._noun} has more than {self._max_fields} fields")
            field = self.field(at, end)
            yield field
            at = field[3]

    def nested_fields(self, start: int, end: int, depth: int) -> Iterator[Field]:
        """The fields of the message in bytes `start`..`end`, which is nested `depth` messages deep.

        Raises:
            WireError: (while iterating; or what `failure` makes) these bytes are not a message, or nested too deep.
        """
        if depth > MAX_DEPTH:
            raise self._failure(f"messages nested more than {MAX_DEPTH} deep at byte {start}")
        for tag, _, begin, stop in self.fields(start, end):
            kind = tag & 7
            value = self.varint(begin, stop)[0] & _UINT64 if kind == VARINT else 0
            yield Field(tag >> 3, value, begin, stop, kind == LENGTH)

    def field(self, start: int, end: int) -> tuple[int, int, int, int]:
        """The field that begins at byte `start`, as `fields` gives it.

        Raises:
            WireError: (or what `failure` makes) these bytes are not a field, or the field goes on beyond `end`.
        """
        tag, at = self.varint(start, end)
        kind = tag & 7
        payload = at
        if kind == LENGTH:
            length, payload = self.varint(at, end)
            stop = payload + length
        elif kind == VARINT:
            _, stop = self.varint(at, end)
        elif kind == FIXED64:
            stop = at + 8
        elif kind == FIXED32:
            stop = at + 4
        else:
            raise self._failure(f"wire type {kind} in field {tag >> 3} at byte {start}")
        if tag < 8:
            raise self._failure(f"field number 0 at byte {start}")
        if stop > end:
            outer = f"the {self._noun}" if end == len(self._data) else "its message"
            raise self._failure(f"field {tag >> 3} at byte {start} should reach to byte {stop}, but {outer} ends at byte {end}")
        return tag, start, payload, stop

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """The unsigned number at byte `at`, and the byte after it.

        Raises:
            WireError: (or what `failure` makes) the number is cut off at `end`, or longer than ten bytes.
        """
        data = self._data
        if at < end and (first := data[at]) < 0x80:
            return first, at + 1
        value = shift = 0
        for byte in data[at : min(end, at + VARINT_BYTES)]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        if shift < 7 * VARINT_BYTES:
            raise self._failure(f"a message ends inside a number, at byte {end}")
        raise self._failure(f"a number longer than ten bytes at byte {at - VARINT_BYTES}")

    def text(self, field: Field) -> str:
        """The field's payload as a string.

        Raises:
            WireError: (or what `failure` makes) it is not UTF-8.
        """
        try:
            return bytes(self._data[field.start : field.end]).decode()
        except UnicodeDecodeError:
            raise self._failure(f"text that is not UTF-8 in field {field.number} at byte {field.start}") from None

    def numbers(self, field: Field) -> Iterator[int]:
        """The field's number, or the packed numbers in its payload, as int64.

        Raises:
            WireError: (while iterating; or what `failure` makes) the payload is cut off.
        """
        at = field.start
        if not field.is_message:
            yield field.signed
        while field.is_message and at < field.end:
            number, at = self.varint(at, field.end)
            number &= _UINT64
            yield number - (1 << 64) if number >> 63 else number


def encoded_varint(number: int) -> bytes:
    """`number` (0 or more) in wire format."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encoded_field(number: int, payload: bytes) -> bytes:
    """A field of that number whose payload is a message, text or bytes."""
    return encoded_varint(number << 3 | LENGTH) + encoded_varint(len(payload)) + payload


def encoded_number(number: int, value: int) -> bytes:
    """A field of that number that holds `value`, which is not negative."""
    return encoded_varint(number << 3 | VARINT) + encoded_varint(value)
