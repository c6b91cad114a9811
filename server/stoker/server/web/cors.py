"""Cross-origin resource sharing (the Fetch standard, section "CORS protocol"): scripts of the allowed pages may read responses.

A preflight gets its response for every path, before any route, key or body is read: it reveals only which origins are allowed. Credentials
(cookies, client certificates) are never allowed. An API key in a separate header is no credential in this sense.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final

from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.net.http1.direct import Connection, DirectRoute, DirectRoutes, Exchange
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import HeaderList, Piece
from stoker.server.protocols.exchange import Receive, Scope, Send, error_body, send_response
from stoker.server.web.settings import ANY, CorsSettings

#: The response headers that scripts may read in addition to the default ones.
_EXPOSED: Final = b"inference-header-content-length, retry-after"
_METHODS: Final = b"GET, HEAD, POST"
#: Seconds that a browser may cache a preflight response.
_MAX_AGE: Final = b"600"
_VARY: Final = (b"vary", b"origin")


class CorsRoutes:
    """Wraps the routes of the short path: responds to preflights, and adds the CORS headers to responses."""

    def __init__(self, settings: CorsSettings, routes: DirectRoutes) -> None:
        self._settings = settings
        self._routes = routes

    def find(self, head: RequestHead) -> DirectRoute | None:
        origin = dict(head.headers).get(b"origin")
        route = self._routes.find(head)
        if route is None or origin is None:
            return route
        lines = b"".join(b"%b: %b\r\n" % field for field in response_fields(self._settings, origin))
        return _CorsRoute(route, lines) if lines else route


class CorsApp:
    """Does the same for responses of an ASGI app."""

    def __init__(self, settings: CorsSettings, app: Any) -> None:
        self._settings = settings
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        origin = given.get(b"origin")
        if origin is not None and scope["method"] == "OPTIONS" and b"access-control-request-method" in given:
            await send_response(send, *_preflight(self._settings, origin, given.get(b"access-control-request-headers")))
            return
        fields = response_fields(self._settings, origin)

        async def send_with(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *fields]}
            await send(message)

        await self._app(scope, receive, send_with if fields else send)


def response_fields(settings: CorsSettings, origin: bytes | None) -> HeaderList:
    """The CORS headers of a response to a page of `origin`; None: the request names no origin."""
    if settings.is_any:
        return [] if origin is None else [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
    if origin is None or not settings.allows(origin.decode("latin-1")):
        # For caches: the response depends on the origin.
        return [_VARY]
    return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), _VARY]


def _preflight(settings: CorsSettings, origin: bytes, requested_headers: bytes | None) -> tuple[int, bytes, HeaderList]:
    if not settings.allows(origin.decode("latin-1")):
        text = error_body(f"pages of {origin.decode('latin-1')} may not use this server: --http-cors-allow-origin does not name them")
        return HTTPStatus.FORBIDDEN, text, [(b"content-type", b"application/json"), _VARY]
    fields: HeaderList = [
        (b"access-control-allow-origin", ANY.encode() if settings.is_any else origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _MAX_AGE),
        (b"vary", b"origin, access-control-request-method, access-control-request-headers"),
    ]
    if requested_headers is not None:
        # Any header is allowed: routes ignore unknown ones.
        fields.append((b"access-control-allow-headers", requested_headers))
    return HTTPStatus.OK, b"", fields


class _CorsRoute:
    """A route of the short path that adds header lines to its responses."""

    __slots__ = ("_lines", "_route")

    def __init__(self, route: DirectRoute, lines: bytes) -> None:
        self._route = route
        self._lines = lines

    def exchange(self, connection: Connection) -> Exchange:
        return self._route.exchange(_CorsConnection(connection, self._lines))


class _CorsConnection:
    """A connection that adds header lines to written responses."""

    __slots__ = ("_connection", "_lines")

    def __init__(self, connection: Connection, lines: bytes) -> None:
        self._connection = connection
        self._lines = lines

    @property
    def keep_alive(self) -> bool:
        return self._connection.keep_alive

    def write_response(self, parts: Sequence[Piece]) -> None:
        head = bytes(parts[0])
        at = head.index(b"\r\n") + 2
        self._connection.write_response([b"".join((head[:at], self._lines, memoryview(head)[at:])), *parts[1:]])

    def release_when_sent(self, reservation: Reservation) -> None:
        self._connection.release_when_sent(reservation)

    def reservation(self, budget: ByteBudget) -> Reservation:
        return self._connection.reservation(budget)

    def begin_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._connection.begin_task(work)
