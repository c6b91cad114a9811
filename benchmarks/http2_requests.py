"""The bytes of gRPC calls, as grpcio sends them, without a socket."""

import struct
from typing import Final


def http2_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
#: After the path. RFC 7541: every field a literal with incremental indexing, and later its index; the table's newest entry is 62.
_FIELDS: Final = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"request-calls"),
)
_INDEXED_FIELDS: Final = bytes(0x80 | 62 + len(_FIELDS) - at for at in range(len(_FIELDS) + 1))


class GrpcRequests:
    """The frames of unary calls on one HTTP/2 connection, as grpcio sends them."""

    #: A preface, empty SETTINGS, and the acknowledgement of the server's.
    PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0) + http2_frame(4, 1, 0)

    def __init__(self, message: bytes, path: str = MODEL_INFER) -> None:
        """`message` is the serialised request of every call of the method `path`."""
        self.stream_id = -1
        fields = ((b":path", path.encode()), *_FIELDS)
        self._literals = b"".join(b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in fields)
        self._body = b"\0" + struct.pack(">I", len(message)) + message

    def next(self) -> bytes:
        """The frames of the next request, and the window updates for the last response."""
        self.stream_id += 2
        block = self._literals if self.stream_id == 1 else _INDEXED_FIELDS
        windows = http2_frame(8, 0, 0, struct.pack(">I", 160)) + http2_frame(8, 0, self.stream_id, struct.pack(">I", 5))
        head, body = http2_frame(1, 4, self.stream_id, block), http2_frame(0, 1, self.stream_id, self._body)
        return head + windows + body
