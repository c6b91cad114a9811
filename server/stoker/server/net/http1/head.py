"""The head of an HTTP/1.1 request: request line and fields, parsed by llhttp under the limits, and a cache of parsed heads.

A head is parsed separately, from its first byte to its blank line, so that the result depends only on these bytes. Clients send the same
head again and again, and a head that equals a cached one is not parsed again. `body.py` reads the bodies.
"""

import re
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import httptools

from stoker.server.core.limits import Limits
from stoker.server.net.http1.response import Rejection

#: The end of a head.
BLANK_LINE: Final = b"\r\n\r\n"
#: Bytes of a request line beside the target.
_LINE_BYTES: Final = 64
#: Fields that decide how a body is read, or name its sender: with two of them, a proxy and the server might each use another one.
_SINGLE: Final = frozenset((b"inference-header-content-length", b"content-encoding", b"authorization"))
#: Targets without query or percent-encoding, which equal their path.
_PLAIN_PATH: Final = re.compile(rb"/[A-Za-z0-9_.\-/]*\Z")
#: Heads in the cache, and the size of the largest one.
_KEPT_HEADS: Final = 256
_KEPT_HEAD_BYTES: Final = 1024
#: Most remembered hashes of heads that were received once.
_SEEN_ONCE: Final = 1024

RouteType = TypeVar("RouteType")


class RequestHead:
    """One request's head.

    Attributes:
        method: As sent, in upper case.
        target: As sent: path and query.
        path: Of the target, percent-decoded.
        raw_path: Of the target, as sent.
        query: Of the target, without its question mark.
        version: "1.0" or "1.1".
        headers: Names in lower case, values as sent but for blanks around them.
        length: Bytes of the body; None: it comes in chunks.
        keep_alive: Whether the client may use the connection again.
        expects_continue: Whether the client waits for a go-ahead before it sends the body.
    """

    # fmt: off
    __slots__ = (
        "expects_continue", "headers", "keep_alive", "length", "method", "path", "query", "raw_path", "target", "version",
    )
    # fmt: on

    def __init__(
        self,
        *,
        method: str,
        target: bytes,
        path: str,
        raw_path: bytes,
        query: bytes,
        version: str,
        headers: tuple[tuple[bytes, bytes], ...],
        length: int | None,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.version = version
        self.headers = headers
        self.length = length
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue


class HeadParser:
    """Reads one head, in pieces of any size."""

    __slots__ = ("_begun", "_headers", "_is_complete", "_keep_alive", "_limits", "_method", "_parser", "_size_bytes", "_target", "_version")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._size_bytes = 0
        self._begun = 0
        self._is_complete = False
        self._method = self._version = ""
        self._keep_alive = False

    def feed(self, piece: bytes) -> None:
        """Reads on. REQUIRES: `piece` does not go beyond the head's blank line.

        Raises:
            Rejection: it is no HTTP, or exceeds a limit.
        """
        limits = self._limits
        self._size_bytes += len(piece)
        if self._size_bytes > limits.header_bytes + limits.url_bytes + _LINE_BYTES:
            raise self._too_long(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # the client only offers another protocol: the server responds in this one
        except httptools.HttpParserError:
            raise Rejection(HTTPStatus.BAD_REQUEST, "invalid HTTP request") from None
        if len(self._target) > limits.url_bytes:
            raise self._target_too_long()
        if len(self._headers) > limits.header_count:
            raise self._header_too_long()

    def head(self) -> RequestHead:
        """The head. REQUIRES: all of it was fed.

        Raises:
            Rejection: the head is invalid or exceeds a limit.
        """
        # The parser refers to this object's methods, and they to it: a cycle, which would stay in memory until the next collection.
        self._parser = None
        if not self._is_complete or self._begun != 1:
            raise Rejection(HTTPStatus.BAD_REQUEST, "invalid HTTP request")
        version = self._version
        if version not in ("1.0", "1.1"):
            raise Rejection(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server speaks HTTP/1.1 and HTTP/1.0 here")
        length, expects_continue = self._framing(version)
        raw_path, query = self._path()
        path = raw_path.decode("ascii")
        return RequestHead(
            method=self._method,
            target=self._target,
            path=urllib.parse.unquote(path) if "%" in path else path,
            raw_path=raw_path,
            query=query,
            version=version,
            headers=tuple(self._headers),
            length=length,
            keep_alive=version == "1.1" and self._keep_alive,
            expects_continue=expects_continue,
        )

    def _path(self) -> tuple[bytes, bytes]:
        """Path and query of the target."""
        if _PLAIN_PATH.match(self._target):
            return self._target, b""
        try:
            # Any: httptools declares bytes where it gives None too, and compiled code checks what is declared.
            url: Any = httptools.parse_url(self._target)
        except httptools.HttpParserInvalidURLError:
            raise Rejection(HTTPStatus.BAD_REQUEST, "invalid request target") from None
        path: bytes | None = url.path
        query: bytes | None = url.query
        return path or b"/", query or b""

    def on_message_begin(self) -> None:
        self._begun += 1

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # RFC 9112, section 5.1: blanks around a value are not part of it. The parser removes only those in front.
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        # Read here, because the parser forgets a message without a body right after this call.
        self._is_complete = True
        self._method = self._parser.get_method().decode("ascii")
        self._version = self._parser.get_http_version()
        self._keep_alive = self._parser.should_keep_alive()

    def _framing(self, version: str) -> tuple[int | None, bool]:
        """The body's length (None: chunked), and whether the client waits for a go-ahead."""
        limits = self._limits
        size = hosts = declared = 0
        singles: set[bytes] = set()
        is_chunked = expects_continue = False
        for name, value in self._headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                # The parser has checked that there is one, and that it is a decimal number.
                declared = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise Rejection(HTTPStatus.NOT_IMPLEMENTED, "the only Transfer-Encoding that is read here is chunked")
                if version == "1.0":
                    raise Rejection(HTTPStatus.BAD_REQUEST, "HTTP/1.0 knows no Transfer-Encoding")
                is_chunked = True
            elif name in _SINGLE:
                if name in singles:
                    raise Rejection(HTTPStatus.BAD_REQUEST, f"the header field {name.decode()} is given more than once")
                singles.add(name)
            elif name == b"expect" and value.lower() == b"100-continue":
                expects_continue = version == "1.1"
        if size > limits.header_bytes:
            raise self._header_too_long()
        if hosts > 1 or (not hosts and version == "1.1"):
            raise Rejection(HTTPStatus.BAD_REQUEST, "an HTTP/1.1 request needs exactly one Host header")
        most = limits.http_body_bytes
        if declared > most:
            raise Rejection(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body of {declared} bytes exceeds the limit of {most} bytes")
        return None if is_chunked else declared, expects_continue

    def _too_long(self, piece: bytes) -> Rejection:
        if not self._headers and b"\r\n" not in piece[: self._limits.url_bytes + _LINE_BYTES]:
            return self._target_too_long()
        return self._header_too_long()

    def _target_too_long(self) -> Rejection:
        return Rejection(HTTPStatus.REQUEST_URI_TOO_LONG, f"the request target exceeds {self._limits.url_bytes} bytes")

    def _header_too_long(self) -> Rejection:
        limits = self._limits
        return Rejection(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the header exceeds {limits.header_bytes} bytes or {limits.header_count} fields",
        )


class KnownHead(Generic[RouteType]):
    """A head, and the route of requests that begin with it; `route` None: the ASGI app."""

    __slots__ = ("head", "route")

    def __init__(self, head: RequestHead, route: RouteType | None) -> None:
        self.head = head
        self.route = route


class HeadCache(Generic[RouteType]):
    """Heads by their bytes, with their routes; at most about half a MiB. Confined to: the event loop.

    Attributes:
        limits: Bounds on what clients send.
        heads: The cached heads by their bytes.
    """

    __slots__ = ("_find_route", "_seen_once", "heads", "limits")

    def __init__(self, limits: Limits, find_route: Callable[[RequestHead], RouteType | None]) -> None:
        """`find_route` is called once for each head that is parsed."""
        self.limits = limits
        self._find_route = find_route
        self.heads: dict[bytes, KnownHead[RouteType]] = {}
        #: Hashes of heads that came once. A head is cached from its second time on: a head that holds a request number never comes again.
        self._seen_once: set[int] = set()

    def __len__(self) -> int:
        """How many heads are cached."""
        return len(self.heads)

    def parse(self, block: bytes) -> KnownHead[RouteType]:
        """The head `block`, complete from its first byte to its blank line; cached from its second time on.

        Raises:
            Rejection: the head is invalid or exceeds a limit.
        """
        parser = HeadParser(self.limits)
        parser.feed(block)
        known = self.parsed(parser)
        if len(block) <= _KEPT_HEAD_BYTES:
            self._keep(block, known)
        return known

    def parsed(self, parser: HeadParser) -> KnownHead[RouteType]:
        """The head that `parser` has read in pieces.

        Raises:
            Rejection: the head is invalid or exceeds a limit.
        """
        head = parser.head()
        return KnownHead(head, self._find_route(head))

    def _keep(self, block: bytes, known: KnownHead[RouteType]) -> None:
        mark = hash(block)
        if mark not in self._seen_once:
            if len(self._seen_once) >= _SEEN_ONCE:
                self._seen_once.clear()
            self._seen_once.add(mark)
            return
        if len(self.heads) >= _KEPT_HEADS:
            self.heads.clear()
        self.heads[block] = known


class HeadReader(Generic[RouteType]):
    """Reads the heads of one connection, one after the other; most come complete and are cached. Confined to: the event loop."""

    __slots__ = ("_cache", "_parser", "_tail")

    def __init__(self, cache: HeadCache[RouteType]) -> None:
        self._cache = cache
        self._parser: HeadParser | None = None
        self._tail = b""

    def take(self, data: bytes, at: int) -> tuple[KnownHead[RouteType] | None, int]:
        """Reads `data` from `at`, but not beyond the next head; returns that head, once it is complete, and where reading stopped.

        Raises:
            Rejection: the head is invalid or exceeds a limit.
        """
        parser = self._parser
        if parser is None:
            if data[at] in b"\r\n":
                # Blank lines before a message are passed over.
                at = len(data) - len(data[at:].lstrip(b"\r\n"))
                if at == len(data):
                    return None, at
            end = data.find(BLANK_LINE, at)
            if end >= 0:
                end += len(BLANK_LINE)
                block = data[at:end]
                return self._cache.heads.get(block) or self._cache.parse(block), end
            parser = self._parser = HeadParser(self._cache.limits)
        # The blank line may come in pieces.
        joined = self._tail + data[at:]
        end = joined.find(BLANK_LINE)
        if end < 0:
            parser.feed(data[at:])
            self._tail = joined[-len(BLANK_LINE) + 1 :]
            return None, len(data)
        begin, at = at, at + end + len(BLANK_LINE) - len(self._tail)
        parser.feed(data[begin:at])
        self._parser, self._tail = None, b""
        return self._cache.parsed(parser), at
