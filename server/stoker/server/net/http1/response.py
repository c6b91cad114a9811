"""Complete responses as bytes, and the rejection: the response to a message that breaks HTTP's grammar or a limit."""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

import orjson

from stoker.server.core.views import kept

HeaderList = list[tuple[bytes, bytes]]

#: Up to this size head and body are joined into one piece.
_JOINED_BYTES: Final = 512 * 1024
Piece = bytes | memoryview
"""A part of a body. The memory behind a view must never change: a slow client may read it late."""
#: By status.
STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


class HttpResponse:
    """A complete response.

    Attributes:
        status: The HTTP status code.
        headers: All but Content-Length and Connection.
        body: In pieces, to be sent one after the other.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: HeaderList, body: Sequence[Piece]) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def parts(self, *, keep_alive: bool) -> Sequence[Piece]:
        """The whole response, in as few pieces as is efficient."""
        fields = b"".join([b"%b: %b\r\n" % field for field in self.headers])
        line = STATUS_LINES.get(self.status) or b"HTTP/1.1 %d \r\n" % self.status
        return joined(line + fields, self.body, keep_alive=keep_alive)


def joined(start: bytes, body: Sequence[Piece], *, keep_alive: bool) -> Sequence[Piece]:
    """`start` (status line and fields, each with its line end), the remaining fields and the blank line, and the body."""
    size = 0
    for piece in body:
        size += len(piece)
    head = (b"%bcontent-length: %d\r\n\r\n" if keep_alive else b"%bcontent-length: %d\r\nconnection: close\r\n\r\n") % (start, size)
    if size <= _JOINED_BYTES:
        return (b"".join((head, *body)),)
    return [head, *map(kept, body)]


def length(pieces: Iterable[Piece]) -> int:
    """Bytes of all `pieces` together."""
    return sum(map(len, pieces))


class Rejection(Exception):
    """A request that breaks HTTP's grammar or a limit: the server responds once, then ends the connection."""

    def __init__(self, status: HTTPStatus, text: str, *, retry_after_s: int | None = None) -> None:
        """`retry_after_s`: when the client may try again; None: no such header."""
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_s = retry_after_s

    def to_bytes(self) -> bytes:
        """The whole response."""
        body = orjson.dumps({"error": self.text})
        retry = b"" if self.retry_after_s is None else b"retry-after: %d\r\n" % self.retry_after_s
        return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
            self.status.value,
            self.status.phrase.encode(),
            retry,
            len(body),
            body,
        )
