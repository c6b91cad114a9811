"""Protobuf messages inside records: bounded before they are parsed, and never an error of protobuf's own."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from stoker.backends.containers.errors import ContainerError, Failure
from stoker.backends.containers.wire import check_wire

_Message = TypeVar("_Message", bound=Message)


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
