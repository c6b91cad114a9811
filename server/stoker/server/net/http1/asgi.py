"""Requests that an ASGI application handles: scope, `receive` and `send` of ASGI 3.0, HTTP specification 2.3.

The head of a response is written with the first body event, as the specification asks: an application that fails before that event gets a
500 response on its behalf. A complete body without Content-Length gets one; a body in several events is chunked, or, for HTTP/1.0, ends
with the connection. `send` waits while the client does not take what was written. When a client disconnects, the task of its request is
cancelled.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from stoker.backends.api.errors import ServingError
from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.net.http1.backpressure import FlowControl
from stoker.server.net.http1.direct import Connection
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import STATUS_LINES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

#: In the scope: the connection's `reservation`, `response_reservation` and `release_when_sent`.
RESERVATION: Final = "stoker.reservation"
RESPONSE_RESERVATION: Final = "stoker.response_reservation"
RELEASE_WHEN_SENT: Final = "stoker.release_when_sent"
#: Set in the scope of a request whose client has disconnected, just before its task is cancelled.
CLIENT_GONE: Final = "stoker.client_gone"

#: Body bytes that wait for the application when reading pauses.
_HIGH_WATERMARK_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
#: Responses with these statuses have no body (RFC 9110, section 6.4.1).
_BODILESS: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_ERROR_TEXT: Final = b"Internal Server Error"
_log = logging.getLogger(__name__)


class AsgiConnection(Connection, Protocol):
    """The part of a connection that an ASGI request uses.

    Attributes:
        transport: Takes the response.
        flow: Pauses reading and reports that writing is paused.
    """

    transport: asyncio.Transport
    flow: FlowControl

    def response_reservation(self, budget: ByteBudget) -> Reservation:
        """The reservation of the response."""

    def end_keep_alive(self) -> None:
        """The connection ends with the present response."""

    def response_written(self) -> None:
        """The whole response to the present request is written."""


class AsgiPeer:
    """The part of the scope that is the same for all requests of a connection."""

    __slots__ = ("client", "scheme", "server")

    def __init__(self, transport: asyncio.Transport) -> None:
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.client: tuple[str, int] | None = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self.server: tuple[str, int | None] | None = None
        if isinstance(own, tuple):
            self.server = str(own[0]), int(own[1])
        elif isinstance(own, str):
            self.server = own, None
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"


class ResponseFraming:
    """How the body of one response is delimited. Sans-IO: events in, bytes out.

    Attributes:
        closes: Whether the connection ends with the response; final once the response has begun.
        has_begun: Whether the head was framed.
        is_complete: Whether the last event was framed.
    """

    __slots__ = ("_fields", "_has_body", "_is_chunked", "_left_bytes", "_may_chunk", "closes", "has_begun", "is_complete")

    def __init__(self, start: Message, method: str, version: str) -> None:
        """Reads an `http.response.start` for a request of that method and HTTP version.

        Raises:
            RuntimeError: a header field is invalid.
        """
        status = int(start["status"])
        self._has_body = method != "HEAD" and status not in _BODILESS
        self._may_chunk = version == "1.1"
        self._is_chunked = False
        #: Of the declared Content-Length; None: not declared.
        self._left_bytes: int | None = None
        self.closes = self.has_begun = self.is_complete = False
        self._fields = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        headers: Iterable[tuple[bytes, bytes]] = start.get("headers", ())
        for given, value in headers:
            name = given.lower()
            if not _NAME(name) or _BAD_VALUE(value):
                raise RuntimeError(f"the ASGI application sent an invalid header field {name!r}")
            if name == b"connection":
                self.closes = self.closes or b"close" in [token.strip().lower() for token in value.split(b",")]
            elif name != b"transfer-encoding":  # which the server chooses
                if name == b"content-length":
                    self._left_bytes = int(value)
                self._fields.append(b"%b: %b\r\n" % (name, value))

    def body(self, data: bytes, *, is_last: bool, keep_alive: bool) -> list[bytes]:
        """Frames one body event; the head precedes the first. `keep_alive`: whether the connection may outlive the response.

        Raises:
            RuntimeError: the body does not have its Content-Length.
        """
        if not self._has_body:
            data = b""
        elif self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0 or (is_last and self._left_bytes):
                raise RuntimeError("the ASGI application sent a body that does not have its Content-Length")
        pieces: list[bytes] = []
        if not self.has_begun:
            pieces.append(self._head(len(data), is_last, keep_alive))
        if self._is_chunked:
            if data:
                pieces += (b"%x\r\n" % len(data), data, b"\r\n")
            if is_last:
                pieces.append(b"0\r\n\r\n")
        elif data:
            pieces.append(data)
        self.is_complete = is_last
        return pieces

    def _head(self, size_bytes: int, is_last: bool, keep_alive: bool) -> bytes:
        self.has_begun = True
        self.closes = self.closes or not keep_alive
        if self._has_body and self._left_bytes is None:
            if is_last:
                self._fields.append(b"content-length: %d\r\n" % size_bytes)
            elif self._may_chunk:
                self._is_chunked = True
                self._fields.append(b"transfer-encoding: chunked\r\n")
            else:
                self.closes = True
        self._fields.append(b"connection: close\r\n\r\n" if self.closes else b"\r\n")
        return b"".join(self._fields)


class AsgiExchange:
    """One request for an ASGI application. Confined to: the event loop. INVARIANT: its task is cancelled when the client disconnects."""

    __slots__ = (
        "_arrived",
        "_awaits_continue",
        "_body",
        "_connection",
        "_framing",
        "_has_given_end",
        "_head",
        "_is_complete",
        "_is_disconnected",
        "_scope",
        "_task",
        "is_responded",
    )

    def __init__(self, app: AsgiApp, head: RequestHead, peer: AsgiPeer, connection: AsgiConnection) -> None:
        """Starts the application with the request that `head` begins."""
        self._head = head
        self._connection = connection
        #: Body bytes that wait for the application; whether the end has arrived; whether the application has it.
        self._body = bytearray()
        self._is_complete = False
        self._has_given_end = False
        self._arrived = asyncio.Event()
        self._awaits_continue = head.expects_continue
        self._is_disconnected = False
        self._framing: ResponseFraming | None = None
        self.is_responded = False
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": peer.server,
            "client": peer.client,
            "scheme": peer.scheme,
            "method": head.method,
            "root_path": "",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": list(head.headers),
            "state": {},
            RESERVATION: connection.reservation,
            RESPONSE_RESERVATION: connection.response_reservation,
            RELEASE_WHEN_SENT: connection.release_when_sent,
        }
        self._task = connection.begin_task(self._run(app))

    # What the connection calls.

    @property
    def has_begun(self) -> bool:
        return self._framing is not None and self._framing.has_begun

    def receive_buffer(self) -> memoryview | None:
        return None

    def received(self, size: int, is_last: bool) -> None:
        raise AssertionError("the body of an ASGI request is not received into a buffer of its own")

    def receive(self, piece: bytes, is_last: bool) -> None:
        if self.is_responded:
            return
        self._body += piece
        self._is_complete = is_last
        if not is_last and len(self._body) > _HIGH_WATERMARK_BYTES:
            self._connection.flow.pause_reading()
        self._arrived.set()

    def disconnect(self) -> None:
        if not self._task.done():
            self._is_disconnected = True
            self._arrived.set()
            self._scope[CLIENT_GONE] = True
            self._task.cancel()

    def fail(self, error: ServingError) -> None:
        raise AssertionError("the body of an ASGI request does not wait for room")

    # What the application calls.

    async def _receive(self) -> Message:
        connection = self._connection
        if self._awaits_continue and not connection.transport.is_closing():
            self._awaits_continue = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._is_disconnected or self.is_responded):
            if not self._is_complete:
                connection.flow.resume_reading()
            if self._body or (self._is_complete and not self._has_given_end):
                body = bytes(self._body)
                self._body.clear()
                self._has_given_end = self._is_complete
                return {"type": "http.request", "body": body, "more_body": not self._is_complete}
            self._arrived.clear()
            await self._arrived.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        flow = self._connection.flow
        if flow.write_paused and not self._is_disconnected:
            await flow.drain()
        if self._is_disconnected:
            return
        kind = message["type"]
        expected = "http.response.start" if self._framing is None else "http.response.body"
        if self.is_responded or kind != expected:
            raise RuntimeError(f"the ASGI application sent {kind!r}, where {'nothing' if self.is_responded else expected!r} may follow")
        if self._framing is None:
            self._framing = ResponseFraming(message, self._head.method, self._head.version)
        else:
            self._write(self._framing, message.get("body", b""), is_last=not message.get("more_body", False))

    def _write(self, framing: ResponseFraming, data: bytes, *, is_last: bool) -> None:
        connection = self._connection
        pieces = framing.body(data, is_last=is_last, keep_alive=connection.keep_alive)
        self._awaits_continue = False
        if pieces:
            connection.transport.write(b"".join(pieces))
        if is_last:
            self.is_responded = True
            self._arrived.set()
            if framing.closes:
                connection.end_keep_alive()
            connection.response_written()

    # The task.

    async def _run(self, app: AsgiApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        except asyncio.CancelledError:
            if not self._is_disconnected:
                self._connection.transport.close()
            raise
        except Exception:  # noqa: BLE001 - whatever the application raises must not leave its client without a response
            _log.exception("the ASGI application failed")
        else:
            if not (self.is_responded or self._is_disconnected):
                _log.error("the ASGI application returned without a complete response")
        if not (self.is_responded or self._is_disconnected):
            self._fail()

    def _fail(self) -> None:
        """Ends the response on behalf of the application: with status 500 if nothing of it was written, else with the connection."""
        if self.has_begun:
            self._connection.transport.close()
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        self._framing = ResponseFraming({"status": 500, "headers": headers}, self._head.method, self._head.version)
        self._write(self._framing, _ERROR_TEXT, is_last=True)
