"""Message compression: gzip and deflate. What comes out is bounded while it comes out, a step at a time."""

import enum
import zlib

from server.frontends.grpc_codes import INTERNAL, RESOURCE_EXHAUSTED
from server.frontends.rpc.refusal import CallFault, Refusal

#: What one step reads and makes at most: some milliseconds of work.
_STEP_IN_BYTES = 64 * 1024
_STEP_OUT_BYTES = 2 << 20


class Encoding(enum.Enum):
    """How messages may be compressed; the value is zlib's `wbits` for the format (gRPC's "deflate" is the zlib format, RFC 1950)."""

    GZIP = 31
    DEFLATE = 15

    @property
    def wire_name(self) -> bytes:
        """As in `grpc-encoding`."""
        return self.name.lower().encode()

    def compress(self, data: bytes) -> bytes:
        """`data`, compressed for speed rather than size: it goes over a wire once."""
        compressor = zlib.compressobj(level=1, wbits=self.value)
        return compressor.compress(data) + compressor.flush()


class Decompression:
    """One compressed message on its way out.

    Attributes:
        is_done: All of it is out.
    """

    __slots__ = ("_at", "_data", "_decompressor", "_left_bytes", "_most_bytes", "_name", "_unread", "is_done")

    def __init__(self, encoding: Encoding, data: bytes, most_bytes: int) -> None:
        """Of `data`, which may hold at most `most_bytes`."""
        self._decompressor = zlib.decompressobj(wbits=encoding.value)
        self._name = encoding.name.lower()
        self._data = data
        self._at = 0
        self._unread = b""
        self._most_bytes = most_bytes
        self._left_bytes = most_bytes
        self.is_done = False

    def step(self) -> bytes:
        """The next part, of at most two MiB; perhaps empty.

        Raises:
            CallFault: the data is not of its encoding, is cut short, is followed by something, or holds more than it may.
        """
        if not self._unread:
            self._unread = self._data[self._at : self._at + _STEP_IN_BYTES]
            self._at += len(self._unread)
        # One byte above what is allowed is proof enough.
        most = min(_STEP_OUT_BYTES, self._left_bytes + 1)
        try:
            part = self._decompressor.decompress(self._unread, most)
        except zlib.error:
            raise CallFault(Refusal(INTERNAL, f"a message is not valid {self._name}, which is the call's grpc-encoding")) from None
        self._left_bytes -= len(part)
        if self._left_bytes < 0:
            text = f"a message exceeds the limit of {self._most_bytes} bytes once decompressed"
            raise CallFault(Refusal(RESOURCE_EXHAUSTED, text))
        self._unread = self._decompressor.unconsumed_tail
        if self._decompressor.eof:
            if self._decompressor.unused_data or self._at < len(self._data):
                raise CallFault(Refusal(INTERNAL, f"a {self._name} message is followed by other bytes"))
            self.is_done = True
        elif not part and not self._unread and self._at == len(self._data):
            raise CallFault(Refusal(INTERNAL, f"a {self._name} message is cut short"))
        return part


#: By name in `grpc-encoding`; None: messages come as they are.
ENCODINGS: dict[bytes, Encoding | None] = {b"identity": None, **{encoding.wire_name: encoding for encoding in Encoding}}
#: Value of `grpc-accept-encoding`.
ACCEPTED = b",".join(ENCODINGS)
