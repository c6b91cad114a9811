"""A look at a protobuf message's bytes before it is parsed.

An empty sub-message takes two bytes in a file but a hundred in memory, so a bound on bytes alone would let a made-up file take fifty
times its size. Counting the entries of the outermost level first, without reading into them, closes that door.
"""

from collections.abc import Mapping

from stoker.backends.containers.errors import ContainerError, Failure

#: Outermost fields of any message of ours; a bound on the time that the look takes.
MAX_FIELDS = 1 << 20

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4, groups, are not used by our messages


def check_wire(data: bytes, limits: Mapping[int, int], failure: Failure = ContainerError) -> None:
    """Counts the outermost fields of a message.

    Args:
        data: The message.
        limits: Most entries allowed, by number of the length-delimited field.
        failure: Makes the error.

    Raises:
        ContainerError: A field has more, or the bytes are no message.
    """
    counts = dict.fromkeys(limits, 0)
    at = fields = 0
    while at < len(data):
        fields += 1
        if fields > MAX_FIELDS:
            raise failure(f"a message has more than {MAX_FIELDS} fields")
        tag, at = _varint(data, at, failure)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at, failure)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _LENGTH:
            length, at = _varint(data, at, failure)
            at += length
        else:
            raise failure(f"not a message: field {field} has wire type {kind}")
        if field in counts:
            counts[field] += 1
            if counts[field] > limits[field]:
                raise failure(f"a message has more than {limits[field]} entries of field {field}")
    if at != len(data):
        raise failure("a message ends inside a field")


def _varint(data: bytes, at: int, failure: Failure) -> tuple[int, int]:
    """The number at `at`, and where the next byte is."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise failure("a message ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise failure("a message holds a number of more than ten bytes")
