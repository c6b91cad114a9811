"""Request bodies: where a body ends, and whether it arrives fast enough. Sans-IO: bytes and times are parameters.

The reader of chunked bodies is strict, so that a proxy and this server cannot disagree about the end of a message: sizes
are one to eight hexadecimal digits and nothing else, lines end in CR LF, and only header fields may stand between the last chunk and the
blank line (they are dropped). Unlike llhttp it reports the byte where the body ends, so that the bytes behind it can wait unread.
"""

import re
from http import HTTPStatus
from typing import Final

from stoker.server.core.limits import Limits
from stoker.server.net.http1.response import Rejection
from stoker.server.net.progress import Progress

# RFC 9112, 7.1: chunk-size [ chunk-ext ] CRLF; extensions are ignored.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]{0,8};[\t\x20-\x7e\x80-\xff]{0,230})?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
#: Longest chunk line, extensions included.
_LINE_BYTES: Final = 256
#: Chunks that one call reads: about a millisecond.
_CHUNKS_AT_ONCE: Final = 1024


class ChunkedBody:
    """Removes the framing of one chunked body.

    Attributes:
        is_complete: Whether its end was read.
        size_bytes: Bytes of its data so far.
    """

    __slots__ = (
        "_chunks",
        "_data_left",
        "_in_trailers",
        "_limits",
        "_line",
        "_needs_line_end",
        "_trailer_bytes",
        "is_complete",
        "size_bytes",
    )

    def __init__(self, limits: Limits) -> None:
        """`limits` bounds the number of chunks, and the trailers as it bounds a header."""
        self._limits = limits
        self._data_left = 0
        self._line = b""
        self._chunks = 0
        self._trailer_bytes = 0
        self._needs_line_end = False
        self._in_trailers = False
        self.is_complete = False
        self.size_bytes = 0

    def feed(self, data: bytes, at: int, into: bytearray) -> int:
        """Reads `data` from `at`, appends the data of the chunks to `into`, and returns where it stopped.

        It stops at the end of the body, at the end of `data`, or between many short chunks, so that the event loop serves others.

        Raises:
            Rejection: the chunks are invalid, or too many.
        """
        end = len(data)
        pause_at = self._chunks + _CHUNKS_AT_ONCE
        while at < end and not self.is_complete and self._chunks < pause_at:
            if self._data_left:
                stop = min(end, at + self._data_left)
                into += memoryview(data)[at:stop]
                self._data_left -= stop - at
                self.size_bytes += stop - at
                at = stop
            elif self._needs_line_end:
                at = self._take_line_end(data, at)
            elif not self._line and not self._in_trailers and (size := _SIZE_LINE.match(data, at)) is not None:
                self._begin_chunk(int(size[1], 16))
                at = size.end()
            else:
                at = self._take_line(data, at)
        return at

    def _take_line_end(self, data: bytes, at: int) -> int:
        taken = data[at : at + 2 - len(self._line)]
        self._line += taken
        if not b"\r\n".startswith(self._line):
            raise Rejection(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size says")
        if len(self._line) == 2:
            self._line, self._needs_line_end = b"", False
        return at + len(taken)

    def _take_line(self, data: bytes, at: int) -> int:
        """Reads a line that may arrive in pieces."""
        found = data.find(b"\n", at)
        stop = len(data) if found < 0 else found + 1
        most = self._limits.header_bytes if self._in_trailers else _LINE_BYTES
        if len(self._line) + stop - at > most:
            raise Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a line in the chunked body exceeds {most} bytes")
        self._line += data[at:stop]
        if found >= 0:
            line, self._line = self._line, b""
            self._read_line(line)
        return stop

    def _read_line(self, line: bytes) -> None:
        if self._in_trailers:
            self._trailer_bytes += len(line)
            if line == b"\r\n":
                self.is_complete = True
            elif self._trailer_bytes > self._limits.header_bytes:
                raise Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the trailers exceed {self._limits.header_bytes} bytes")
            elif not _TRAILER.fullmatch(line):
                raise Rejection(HTTPStatus.BAD_REQUEST, "the chunked body does not end in a blank line")
        else:
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise Rejection(HTTPStatus.BAD_REQUEST, "a chunk size is not a hexadecimal number on a line of its own")
            self._begin_chunk(int(size[1], 16))

    def _begin_chunk(self, size: int) -> None:
        if not size:
            self._in_trailers = True
            return
        self._chunks += 1
        if self._chunks > self._limits.chunk_count:
            raise Rejection(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self._limits.chunk_count} chunks")
        self._data_left = size
        self._needs_line_end = True


class BodyFrame:
    """A body that is arriving.

    Attributes:
        size_bytes: Bytes that have arrived.
        progress: How fast they arrive.
    """

    __slots__ = ("_chunks", "_left", "progress", "size_bytes")

    def __init__(self, length: int | None, limits: Limits, now_s: float) -> None:
        """`length` is in bytes; None: the body is chunked."""
        self._left = length
        self._chunks = ChunkedBody(limits) if length is None else None
        self.progress = Progress(limits, now_s)
        self.size_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether its end has arrived."""
        return not self._left if self._chunks is None else self._chunks.is_complete

    def most(self, available: int) -> int:
        """How many of `available` bytes belong to the body. REQUIRES: it is not chunked."""
        return min(self._left or 0, available)

    def note(self, size: int, now_s: float) -> None:
        """Notes that more bytes of the body have arrived. REQUIRES: it is not chunked."""
        self._left = (self._left or 0) - size
        self.size_bytes += size
        self.progress.note(size, now_s)

    def take(self, data: bytes, at: int, now_s: float) -> tuple[bytes, int]:
        """Returns the part of it that `data` holds from `at` on, and where reading stopped.

        Raises:
            Rejection: the chunks are invalid.
        """
        if self._chunks is None:
            piece = data[at : at + self.most(len(data) - at)]
            self.note(len(piece), now_s)
            return piece, at + len(piece)
        unframed = bytearray()
        at = self._chunks.feed(data, at, unframed)
        # Bytes of the framing do not count.
        self.progress.note(len(unframed), now_s)
        self.size_bytes = self._chunks.size_bytes
        return bytes(unframed), at

    def slowness(self, now_s: float) -> Rejection | None:
        """The rejection of a body that arrives too slowly; None: its client may go on."""
        slowness = self.progress.slowness(now_s)
        return None if slowness is None else Rejection(HTTPStatus.REQUEST_TIMEOUT, slowness)
