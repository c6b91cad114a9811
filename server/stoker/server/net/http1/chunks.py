"""A chunked body without its framing. Sans-IO: bytes in, data out.

Strict where others are lenient, so that nobody before us and we can disagree where a message ends: sizes are one to eight hexadecimal
digits and nothing else, lines end in CR LF, and what stands between the last chunk and the blank line must be header fields (which are
dropped). Unlike the parser of heads it tells the byte where the body ends, so that what follows can wait unread.
"""

import re
from http import HTTPStatus

from stoker.server.core.limits import Limits
from stoker.server.net.http1.refusal import Refusal

# RFC 9112, 7.1: chunk-size [ chunk-ext ] CRLF; extensions are read over.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]{0,8};[\t\x20-\x7e\x80-\xff]{0,230})?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
#: Longest chunk line, extensions included.
_LINE_BYTES = 256
#: Chunks that are read in one go: about a millisecond.
_CHUNKS_AT_ONCE = 1024


class ChunkedBody:
    """One body in chunks.

    Attributes:
        is_complete: Whether its end was read.
        size_bytes: Of the data so far.
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
        """`limits` bounds the chunks, and the trailers as it bounds a header."""
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
        """Reads `data` from `at`, appends what it holds of the body to `into`, and returns where it stopped reading.

        That is the end of the body, the end of `data`, or, where chunks are many and short, a place between, so that others have a turn.

        Raises:
            Refusal: it is not chunked as it must be, or has too many chunks.
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
            raise Refusal(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size says")
        if len(self._line) == 2:
            self._line, self._needs_line_end = b"", False
        return at + len(taken)

    def _take_line(self, data: bytes, at: int) -> int:
        """Reads a line that may have come in pieces."""
        found = data.find(b"\n", at)
        stop = len(data) if found < 0 else found + 1
        most = self._limits.header_bytes if self._in_trailers else _LINE_BYTES
        if len(self._line) + stop - at > most:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a line in the chunked body exceeds {most} bytes")
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
                raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the trailers exceed {self._limits.header_bytes} bytes")
            elif not _TRAILER.fullmatch(line):
                raise Refusal(HTTPStatus.BAD_REQUEST, "the chunked body does not end in a blank line")
        else:
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise Refusal(HTTPStatus.BAD_REQUEST, "a chunk size is not a hexadecimal number on a line of its own")
            self._begin_chunk(int(size[1], 16))

    def _begin_chunk(self, size: int) -> None:
        if not size:
            self._in_trailers = True
            return
        self._chunks += 1
        if self._chunks > self._limits.chunk_count:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self._limits.chunk_count} chunks")
        self._data_left = size
        self._needs_line_end = True
