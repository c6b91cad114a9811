"""The bytes of gRPC calls, as grpcio sends them, without a socket."""

import struct
from typing import Final


def http2_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


#: RFC 7541: every field a literal with incremental indexing, and later its index; the table's newest entry is 62.
_PATH: Final = b"/inference.GRPCInferenceService/"
_FIELDS: Final = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"request-calls"),
)
_INDEXED_FIELDS: Final = bytes(0x80 | 62 + len(_FIELDS) - at for at in range(len(_FIELDS) + 1))


def _literal_fields(method: str) -> bytes:
    fields = ((b":path", _PATH + method.encode()), *_FIELDS)
    return b"".join(b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in fields)


class GrpcRequests:
    """The frames of calls with one message on one HTTP/2 connection, as grpcio sends them."""

    #: A preface, empty SETTINGS, and the acknowledgement of the server's.
    PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0) + http2_frame(4, 1, 0)

    def __init__(self, message: bytes, method: str = "ModelInfer") -> None:
        """`message` is the serialised ModelInferRequest of every call of `method`."""
        self.stream_id = -1
        self._first_block = _literal_fields(method)
        self._body = b"\0" + struct.pack(">I", len(message)) + message

    def next(self) -> bytes:
        """The frames of the next request, and the window updates for the last response."""
        self.stream_id += 2
        block = self._first_block if self.stream_id == 1 else _INDEXED_FIELDS
        windows = http2_frame(8, 0, 0, struct.pack(">I", 160)) + http2_frame(8, 0, self.stream_id, struct.pack(">I", 5))
        head, body = http2_frame(1, 4, self.stream_id, block), http2_frame(0, 1, self.stream_id, self._body)
        return head + windows + body
