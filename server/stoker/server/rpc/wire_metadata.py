"""Metadata as HTTP/2 header fields: application metadata and gRPC's own fields, `-bin` values, and the encoding of status texts."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from stoker.server.rpc.rejection import CallFault, Rejection
from stoker.server.rpc.status import INTERNAL

Fields = Iterable[tuple[bytes, bytes]]
"""Header fields, names in lower case."""

#: Fields of the transport or of gRPC, which are not application metadata.
_RESERVED: Final = frozenset(
    {b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-message-type"}
)
#: "gRPC over HTTP2", Percent-Encoded: printable ASCII except the percent sign is sent unchanged.
_ESCAPED: Final = re.compile(rb"[^ -$&-~]")


def text_metadata(fields: Fields) -> dict[str, str]:
    """Textual metadata by name; the last value of a repeated name is used."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in fields
        if name not in _RESERVED and not name.startswith(b":") and not name.endswith(b"-bin")
    }


def binary_metadata(fields: Fields) -> dict[str, bytes]:
    """Decoded metadata whose names end in `-bin`; the last of several values (in fields, or joined by commas) is used.

    Raises:
        CallFault: a value is not base64.
    """
    return {name.decode("latin-1"): _decode(name, value) for name, value in fields if name.endswith(b"-bin")}


def metadata_fields(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Encodes metadata as header fields: bytes as base64, text as printable ASCII with other characters replaced by `?`."""
    return [(name.lower().encode(), _encode(value) if isinstance(value, bytes) else _printable(value)) for name, value in metadata]


def percent_encoded(text: str) -> bytes:
    """`text` as the value of `grpc-message`."""
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], text.encode("utf-8", "replace"))


def _decode(name: bytes, value: bytes) -> bytes:
    last = value.rpartition(b",")[2].strip()
    # Implementations send it with and without padding.
    padded = last + b"=" * (-len(last) % 4)
    try:
        return base64.b64decode(padded, validate=True)
    except binascii.Error:
        raise CallFault(Rejection(INTERNAL, f"the metadata '{name.decode('latin-1')}' is not base64")) from None


def _encode(value: bytes) -> bytes:
    return base64.b64encode(value).rstrip(b"=")


def _printable(text: str) -> bytes:
    return re.sub(rb"[^ -~]", b"?", text.encode("ascii", "replace")).strip()
