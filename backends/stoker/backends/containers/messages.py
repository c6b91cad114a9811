"""Protobuf messages inside records: bounded before they are parsed, and never an error of protobuf's own."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from stoker.backends.api.wire import WireReader
from stoker.backends.containers.errors import ContainerError, Failure

#: Outermost fields of one message; bounds the time of `check_wire`.
MAX_FIELDS = 1 << 20

_Message = TypeVar("_Message", bound=Message)


def check_wire(data: bytes, limits: Mapping[int, int], failure: Failure = ContainerError) -> None:
    """Counts the outermost fields of a message before it is parsed.

    An empty sub-message takes two bytes in a file but a hundred in memory, so a bound on bytes alone would let a crafted file take fifty
    times its size.

    Args:
        data: The message.
        limits: Most entries allowed, by field number.
        failure: Makes the error.

    Raises:
        ContainerError: A field has more entries than its limit, or the bytes are not a message.
    """
    counts = dict.fromkeys(limits, 0)
    for tag, _, _, _ in WireReader(data, max_fields=MAX_FIELDS, failure=failure).fields(0, len(data)):
        number = tag >> 3
        if number in counts:
            counts[number] += 1
            if counts[number] > limits[number]:
                raise failure(f"a message has more than {limits[number]} entries of field {number}")


def parse_message(kind: Callable[[], _Message], data: bytes, limits: Mapping[int, int], failure: Failure = ContainerError) -> _Message:
    """Parses bytes as a message of that type, with at most `limits[field]` entries of a repeated field.

    Raises:
        ContainerError: They are not one, or have more entries.
    """
    check_wire(data, limits, failure)
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise failure(f"not a {message.DESCRIPTOR.name} message: {error}") from error
    return message


def make_message(kind: Callable[..., _Message], /, **fields: object) -> _Message:
    """A message of these values.

    Raises:
        ContainerError: A value does not fit its field: a negative count, text that is no Unicode.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise ContainerError(f"a value cannot be stored: {error}") from error
