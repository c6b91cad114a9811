"""Parses the header fields of a gRPC request: method, deadline, compression, metadata; or the reason to reject it.

See "gRPC over HTTP2", Requests. A connection caches parsed heads, because clients repeat the same fields.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from stoker.server.rpc.framing import ENCODINGS, Encoding
from stoker.server.rpc.method import Method, MethodTable
from stoker.server.rpc.rejection import CallFault, Rejection
from stoker.server.rpc.status import INTERNAL, UNIMPLEMENTED
from stoker.server.rpc.wire_metadata import binary_metadata, text_metadata

FieldTuple = tuple[tuple[bytes, bytes], ...]

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])\Z")
_UNIT_NS: Final = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
#: A hundred years in nanoseconds: a longer timeout would overflow 64-bit times.
_MOST_TIMEOUT_NS: Final = 100 * 365 * 24 * 3_600_000_000_000
_CONTENT_TYPE: Final = b"application/grpc"
#: Characters of a requested path that an error text quotes.
_SHOWN_CHARACTERS: Final = 128


class NotGrpc(Exception):
    """The request is not gRPC; the response is the plain HTTP `status` without a body."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


class RequestHead:
    """The header of a call. One object may serve many calls that began with the same fields.

    Attributes:
        method: The called method.
        timeout_ns: The client's timeout from the time of receipt, in nanoseconds; None: there is none.
        encoding: The compression of messages whose compressed flag is set; None: no message may be compressed.
        response_encoding: The compression of responses: that of the request, because the client supports it.
    """

    __slots__ = ("_binary", "_fields", "_text", "encoding", "method", "response_encoding", "timeout_ns")

    def __init__(self, fields: FieldTuple, method: Method, timeout_ns: int | None, encoding: Encoding | None) -> None:
        self._fields = fields
        self._text: Mapping[str, str] | None = None
        self._binary: Mapping[str, bytes] | None = None
        self.method = method
        self.timeout_ns = timeout_ns
        self.encoding = encoding
        self.response_encoding = encoding

    @property
    def metadata(self) -> Mapping[str, str]:
        """See `Call.metadata`."""
        if self._text is None:
            self._text = text_metadata(self._fields)
        return self._text

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        """See `Call.binary_metadata`."""
        if self._binary is None:
            self._binary = binary_metadata(self._fields)
        return self._binary


class _Known(NamedTuple):
    """The header fields that gRPC defines."""

    verb: bytes
    path: bytes
    content_type: bytes
    te: bytes
    timeout: bytes | None
    encoding: bytes


def read_head(fields: FieldTuple, methods: MethodTable) -> RequestHead:
    """Parses `fields`.

    Raises:
        NotGrpc: the request is not gRPC's.
        CallFault: the method or the encoding is unknown, or a field is malformed.
    """
    known = _known(fields)
    if known.verb != b"POST":
        raise NotGrpc(405)
    rest = known.content_type[len(_CONTENT_TYPE) :]
    if not known.content_type.lower().startswith(_CONTENT_TYPE) or (rest and rest[:1] not in b"+; "):
        raise NotGrpc(415)
    if known.te.lower() != b"trailers":
        raise CallFault(Rejection(INTERNAL, "the request must carry 'te: trailers'; a proxy between may not support HTTP/2 trailers"))
    method = methods.get(known.path.decode("latin-1"))
    if method is None:
        raise CallFault(_unknown_method(known.path, methods))
    if known.encoding not in ENCODINGS:
        name = known.encoding.decode("latin-1")[:_SHOWN_CHARACTERS]
        raise CallFault(Rejection(UNIMPLEMENTED, f"grpc-encoding '{name}' is not supported; identity, gzip and deflate are"))
    if any(name.endswith(b"-bin") for name, _ in fields):
        binary_metadata(fields)
    timeout_ns = None if known.timeout is None else _timeout_ns(known.timeout)
    return RequestHead(fields, method, timeout_ns, ENCODINGS[known.encoding])


def _known(fields: FieldTuple) -> _Known:
    # Of several fields of a name the last counts, here as in the metadata.
    found = dict(fields)
    return _Known(
        verb=found.get(b":method", b""),
        path=found.get(b":path", b""),
        content_type=found.get(b"content-type", b""),
        te=found.get(b"te", b""),
        timeout=found.get(b"grpc-timeout"),
        encoding=found.get(b"grpc-encoding", b"identity"),
    )


def _timeout_ns(value: bytes) -> int:
    found = _TIMEOUT.match(value)
    if found is None:
        text = value.decode("latin-1")[:_SHOWN_CHARACTERS]
        raise CallFault(Rejection(INTERNAL, f"grpc-timeout '{text}' is malformed: expected at most 8 digits and one of H M S m u n"))
    return min(int(found[1]) * _UNIT_NS[found[2]], _MOST_TIMEOUT_NS)


def _unknown_method(path: bytes, methods: MethodTable) -> Rejection:
    text = path.decode("latin-1")[:_SHOWN_CHARACTERS]
    service, _, name = text.lstrip("/").partition("/")
    if any(method.service == service for method in methods.values()):
        return Rejection(UNIMPLEMENTED, f"unknown method '{name}' of the service {service}")
    return Rejection(UNIMPLEMENTED, f"unknown service '{service}'")
