"""gRPC message framing: each message has a compressed flag (1 byte), its length (4 bytes, big-endian) and its bytes.

See "gRPC over HTTP2", Length-Prefixed-Message. Messages may be compressed by gzip or deflate. Decompression stops at a size limit.
"""

import enum
from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Final

from stoker.server.net.inflation import Fault, InflationError, deflate, inflate
from stoker.server.net.receive_buffers import message_block
from stoker.server.rpc.rejection import CallFault, Rejection
from stoker.server.rpc.status import INTERNAL, RESOURCE_EXHAUSTED


class Encoding(enum.Enum):
    """The compression of messages; the value is zlib's `wbits` for the format (gRPC's "deflate" is the zlib format, RFC 1950)."""

    GZIP = 31
    DEFLATE = 15

    @property
    def wire_name(self) -> bytes:
        """The name in `grpc-encoding`."""
        return self.name.lower().encode()

    def compress(self, data: bytes | list[bytes | memoryview]) -> bytes:
        """Compresses `data`, possibly in pieces, at the fastest level."""
        return deflate([data] if isinstance(data, bytes) else data, self.value)


async def decompressed(encoding: Encoding, data: bytes, most_bytes: int, take: Callable[[int], None], most_inline_bytes: int) -> bytes:
    """Decompresses one message of at most `most_bytes`; `take` and `most_inline_bytes` as in `inflate`.

    Raises:
        CallFault: the data is not valid in the encoding, is truncated, is followed by other bytes, or exceeds `most_bytes`.
        Also the exceptions of `take`.
    """
    name = encoding.name.lower()
    try:
        return await inflate(data, encoding.value, most_bytes, take, most_inline_bytes)
    except InflationError as error:
        if error.fault is Fault.TOO_LARGE:
            text = f"a message exceeds the limit of {most_bytes} bytes once decompressed"
            raise CallFault(Rejection(RESOURCE_EXHAUSTED, text)) from None
        texts = {
            Fault.INVALID: f"a message is not valid {name}, which is the call's grpc-encoding",
            Fault.CUT_SHORT: f"a {name} message is cut short",
            Fault.FOLLOWED: f"a {name} message is followed by other bytes",
        }
        raise CallFault(Rejection(INTERNAL, texts[error.fault])) from None


#: Encodings by their name in `grpc-encoding`; None: messages are not compressed.
ENCODINGS: dict[bytes, Encoding | None] = {b"identity": None, **{encoding.wire_name: encoding for encoding in Encoding}}
#: Value of `grpc-accept-encoding`.
ACCEPTED: Final = b",".join(ENCODINGS)


PREFIX: Final = Struct(">BI")
PREFIX_BYTES: Final = PREFIX.size
_RESOURCE_EXHAUSTED: Final = 8
_INTERNAL: Final = 13
#: Smaller pieces are appended to one buffer, because each separate bytes object has an overhead.
_SMALL_PIECE_BYTES: Final = 4096
#: Once this many bytes of a message have arrived, one buffer of its full size is allocated for it. Joining the pieces of 240 MiB at the end
#: blocked the event loop for 130 ms and doubled the memory; joining this many bytes takes about 5 ms.
_JOINED_BYTES: Final = 8 * 1024 * 1024
#: A message of at least this size gets a receive buffer once a sixteenth of it has arrived, if the method takes views. The system commits
#: pages only when they are written, but blocks of some MiB may use huge pages.
_ZERO_COPY_BYTES: Final = 64 * 1024
_ZERO_COPY_SHARE: Final = 16
#: Of a message, this part more memory follows it in its receive buffer, and a little: room for the headers of the frames that it arrives
#: in. Frames have at least 16 KiB, or a client splits its messages into more than any known one does.
_SPARE_SHARE: Final = 1024
_SPARE_BYTES: Final = 64
#: Up to this size a message gets its receive buffer after `_SMALL_PIECE_BYTES`, because so small a block uses no huge page.
_ZERO_COPY_AT_ONCE_BYTES: Final = 1024 * 1024


class WireMessage:
    """A received message.

    Attributes:
        data: The bytes as sent: `bytes`, or a read-only memoryview if the reader was made with `lead_bytes`.
        is_compressed: Whether they are compressed.
    """

    __slots__ = ("data", "is_compressed")

    def __init__(self, data: bytes | memoryview, is_compressed: bool) -> None:
        self.data = data
        self.is_compressed = is_compressed


class MessageReader:
    """Assembles the messages of one stream from pieces of any size.

    It stores the received bytes only. It allocates a message's declared size only after a part of it has arrived, and the system commits a
    page of that memory only when it is written.
    """

    # fmt: off
    __slots__ = (
        "_block",
        "_expected_bytes",
        "_gathered",
        "_head",
        "_is_compressed",
        "_lead_bytes",
        "_most_bytes",
        "_path",
        "_pieces",
        "_size",
    )
    # fmt: on

    def __init__(self, path: str, most_bytes: int, lead_bytes: Callable[[int], int] | None = None) -> None:
        """Rejects a message to the method `path` that is longer than `most_bytes` as soon as its prefix has arrived.

        With `lead_bytes`, large uncompressed messages are returned as views; see `Method.lead_bytes`.
        """
        self._lead_bytes = lead_bytes
        self._block: memoryview | None = None
        self._path = path
        self._most_bytes = most_bytes
        self._head = b""
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._gathered: BytesIO | None = None
        self._expected_bytes: int | None = None
        self._size = 0
        self._is_compressed = False

    @property
    def expected_bytes(self) -> int | None:
        """The length of the incomplete message from its prefix, in bytes; None between messages."""
        return self._expected_bytes

    @property
    def is_between_messages(self) -> bool:
        """Whether no part of an incomplete message is stored."""
        return self._expected_bytes is None and not self._head

    @property
    def has_buffer(self) -> bool:
        """Whether `receive_buffer` is not None."""
        return self._block is not None

    @property
    def receive_buffer(self) -> memoryview | None:
        """The unfilled remainder of the message's buffer; None: there is no buffer, pass the bytes to `feed`.

        It is a little larger than what is missing of the message.
        """
        return None if self._block is None else self._block[self._size :]

    @property
    def missing_bytes(self) -> int:
        """How many bytes are missing of the incomplete message; 0 between messages."""
        return 0 if self._expected_bytes is None else self._expected_bytes - self._size

    def buffer_written(self, count: int) -> list[WireMessage]:
        """As `feed`, for bytes that were written into `receive_buffer`. REQUIRES: at most `missing_bytes`."""
        self._size += count
        return [self._take()] if self._size == self._expected_bytes else []

    def feed(self, data: bytes | memoryview) -> list[WireMessage]:
        """Takes the next bytes of the stream; returns the messages that they complete.

        Raises:
            CallFault: a prefix is malformed, or declares a message that is too large.
        """
        complete: list[WireMessage] = []
        at, end = 0, len(data)
        while at < end:
            if self._expected_bytes is None:
                missing = PREFIX_BYTES - len(self._head)
                self._head += data[at : at + missing]
                at += missing
                if len(self._head) < PREFIX_BYTES:
                    break
                self._begin()
            assert self._expected_bytes is not None
            missing = self._expected_bytes - self._size
            if missing:
                piece = data[at : at + missing]
                at += missing
                if not piece:
                    break
                self._keep(piece)
            if self._size == self._expected_bytes:
                complete.append(self._take())
        return complete

    def _begin(self) -> None:
        flag, size = PREFIX.unpack(self._head)
        if flag > 1:
            raise CallFault(Rejection(_INTERNAL, f"a message begins with the compressed-flag {flag}; 0 and 1 are known"))
        if size > self._most_bytes:
            text = f"a message of {size} bytes to {self._path} exceeds the limit of {self._most_bytes} bytes"
            raise CallFault(Rejection(_RESOURCE_EXHAUSTED, text))
        self._head, self._expected_bytes, self._is_compressed = b"", size, bool(flag)

    def _keep(self, piece: bytes | memoryview) -> None:
        begin = self._size
        self._size += len(piece)
        if self._block is not None:
            self._block[begin : self._size] = piece
            return
        if self._gathered is not None:
            self._gathered.write(piece)
            return
        if len(piece) >= _SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and type(last := self._pieces[-1]) is bytearray:
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        expected = self._expected_bytes
        assert expected is not None
        if self._size == expected:
            return
        if self._lead_bytes is not None and expected >= _ZERO_COPY_BYTES and not self._is_compressed:
            if self._size >= _good_beginning_bytes(expected):
                self._make_block(expected, self._lead_bytes(expected))
        elif self._size >= _JOINED_BYTES:
            self._gather(expected)

    def _make_block(self, size: int, lead_bytes: int) -> None:
        """Moves the pieces into a block for a message of `size` bytes, which will be returned as a view.

        Raises:
            CallFault: the host has not enough memory.
        """
        try:
            self._block = message_block(size + size // _SPARE_SHARE + _SPARE_BYTES, lead_bytes)
        except MemoryError:
            raise _no_memory(size) from None
        at = 0
        for piece in self._pieces:
            self._block[at : at + len(piece)] = piece
            at += len(piece)
        self._pieces = []

    def _gather(self, size: int) -> None:
        """Moves the pieces into a `bytes` object of `size` bytes.

        Raises:
            CallFault: the host has not enough memory.
        """
        try:
            # The system commits zeroed pages only when they are written. CPython writes into this very object and returns it as the value,
            # both without a copy, because there is no other reference to it and its length does not change.
            self._gathered = BytesIO(bytes(size))
        except MemoryError:
            raise _no_memory(size) from None
        for piece in self._pieces:
            self._gathered.write(piece)
        self._pieces = []

    def _take(self) -> WireMessage:
        data: bytes | memoryview
        if self._block is not None:
            data = self._block[: self._size].toreadonly()
        else:
            data = b"".join(self._pieces) if self._gathered is None else self._gathered.getvalue()
        self._pieces, self._block, self._gathered, self._expected_bytes, self._size = [], None, None, None, 0
        return WireMessage(data, self._is_compressed)


def _good_beginning_bytes(size: int) -> int:
    """How many bytes of a message of `size` bytes must have arrived before its buffer is allocated."""
    return _SMALL_PIECE_BYTES if size <= _ZERO_COPY_AT_ONCE_BYTES else min(size // _ZERO_COPY_SHARE, _JOINED_BYTES)


def _no_memory(size: int) -> CallFault:
    return CallFault(Rejection(_RESOURCE_EXHAUSTED, f"the server has no memory for a message of {size} bytes now: try again"))
