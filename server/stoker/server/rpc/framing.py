"""Messages on a stream: each has a flag that says whether it is compressed, its length (4 bytes, big-endian), and its bytes.

From "gRPC over HTTP2", Length-Prefixed-Message. They are compressed by gzip or deflate; what comes out is bounded while it comes out.
"""

import enum
from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import NamedTuple

from stoker.server.net.inflation import Fault, InflationError, deflate, inflate
from stoker.server.net.receive_buffers import message_block
from stoker.server.rpc.rejection import CallFault, Rejection
from stoker.server.rpc.status import INTERNAL, RESOURCE_EXHAUSTED


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
        return deflate([data], self.value)


async def decompressed(encoding: Encoding, data: bytes, most_bytes: int, take: Callable[[int], None], most_inline_bytes: int) -> bytes:
    """The message that `data` holds, `most_bytes` at most; `take` and `most_inline_bytes` as in `inflate`.

    Raises:
        CallFault: the data is not of its encoding, is cut short, is followed by something, or holds more than it may.
        What `take` raises.
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


#: By name in `grpc-encoding`; None: messages come as they are.
ENCODINGS: dict[bytes, Encoding | None] = {b"identity": None, **{encoding.wire_name: encoding for encoding in Encoding}}
#: Value of `grpc-accept-encoding`.
ACCEPTED = b",".join(ENCODINGS)


PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size
_RESOURCE_EXHAUSTED = 8
_INTERNAL = 13
#: Pieces smaller than this are gathered in one buffer: kept apart, many tiny ones would take far more memory than they hold.
_SMALL_PIECE_BYTES = 4096
#: Once so much of a message has come, the rest goes to its place as it comes: to join the pieces of 240 MiB at their end, in memory
#: never touched before, held the event loop for 130 ms and took the message's size once more. Of so much, the join takes some 5 ms.
_JOINED_BYTES = 8 * 1024 * 1024
#: Messages from here on get a receive buffer once a sixteenth has come, where the method takes views: memory that is not written to costs
#: nothing, but for the huge pages that blocks of some MiB are made of.
_ZERO_COPY_BYTES = 64 * 1024
_ZERO_COPY_SHARE = 16
#: Up to here, as soon as anything to speak of has come: no huge page is made of so little.
_ZERO_COPY_AT_ONCE_BYTES = 1024 * 1024


class WireMessage(NamedTuple):
    """A message as it came.

    Attributes:
        data: Its bytes; a read-only view only where the reader may give one.
        is_compressed: Whether they are compressed.
    """

    data: bytes | memoryview
    is_compressed: bool


class MessageReader:
    """Puts the messages of one stream together from pieces of any size.

    What is kept is what came: room for what is promised is taken only behind a good beginning, and as pages that exist once written to.
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
        """A message to the method `path` that is longer than `most_bytes` is rejected as soon as its prefix is there.

        With `lead_bytes`, large messages that are not compressed are given as views; see `LargeMessages`.
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
        """Length of the message that is coming, as its prefix says; None between messages."""
        return self._expected_bytes

    @property
    def is_between_messages(self) -> bool:
        """Whether nothing of an unfinished message is held."""
        return self._expected_bytes is None and not self._head

    @property
    def has_buffer(self) -> bool:
        """Whether `receive_buffer` says where."""
        return self._block is not None

    @property
    def receive_buffer(self) -> memoryview | None:
        """Where the rest of the message is to be put; None: nowhere yet, feed what comes."""
        return None if self._block is None else self._block[self._size :]

    def buffer_written(self, count: int) -> list[WireMessage]:
        """As `feed`, of bytes that stand where `receive_buffer` said. REQUIRES: they are no more than fit there."""
        self._size += count
        return [self._take()] if self._size == self._expected_bytes else []

    def feed(self, data: bytes | memoryview) -> list[WireMessage]:
        """Takes the next bytes of the stream; returns the messages that they complete.

        Raises:
            CallFault: a prefix is malformed, or says that its message is too large.
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
        """Goes over from pieces to a block of the message's `size` that will be given as a view.

        Raises:
            CallFault: this host has no memory for it.
        """
        try:
            self._block = message_block(size, lead_bytes)
        except MemoryError:
            raise _no_memory(size) from None
        at = 0
        for piece in self._pieces:
            self._block[at : at + len(piece)] = piece
            at += len(piece)
        self._pieces = []

    def _gather(self, size: int) -> None:
        """Goes over from pieces to `bytes` of the message's `size`.

        Raises:
            CallFault: this host has no memory for it.
        """
        try:
            # Zeros straight from the system cost nothing until they are written to. CPython writes into the very object and gives it out as
            # the value, both without a copy, because nothing else refers to it and its length stays what it is.
            self._gathered = BytesIO(bytes(size))
        except MemoryError:
            raise _no_memory(size) from None
        for piece in self._pieces:
            self._gathered.write(piece)
        self._pieces = []

    def _take(self) -> WireMessage:
        data: bytes | memoryview
        if self._block is not None:
            data = self._block.toreadonly()
        else:
            data = b"".join(self._pieces) if self._gathered is None else self._gathered.getvalue()
        self._pieces, self._block, self._gathered, self._expected_bytes, self._size = [], None, None, None, 0
        return WireMessage(data, self._is_compressed)


def _good_beginning_bytes(size: int) -> int:
    """How much of a message of `size` must have come before it gets its place."""
    return _SMALL_PIECE_BYTES if size <= _ZERO_COPY_AT_ONCE_BYTES else min(size // _ZERO_COPY_SHARE, _JOINED_BYTES)


def _no_memory(size: int) -> CallFault:
    return CallFault(Rejection(_RESOURCE_EXHAUSTED, f"the server has no memory for a message of {size} bytes now: try again"))
