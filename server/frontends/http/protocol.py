"""uvicorn's HTTP/1.1 connection with what it lacks: bounds on headers, chunks and slowness, and cancelled work when a client leaves.

No timer runs for a connection. It notes when its present phase began, and `HttpListener` sweeps all connections twice a second, so that
the bounds cost a fast request next to nothing.
"""

import asyncio
import enum
from http import HTTPStatus
from typing import Any

import httptools
import orjson
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.frontends.http.gate import ConnectionGate
from server.frontends.limits import Limits

#: Set in the scope of a request whose client is gone, just before its task is cancelled.
CLIENT_GONE = "stoker.client_gone"
#: How long a refused client may take to hang up.
_LINGER_S = 2.0


class _Reading(enum.Enum):
    """What the client owes us now."""

    NOTHING = 0
    HEADER = 1
    BODY = 2


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Confined to: the event loop."""

    def __init__(
        self, limits: Limits, gate: ConnectionGate, config: Config, server_state: ServerState, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={}, _loop=loop)
        self._limits = limits
        self._gate = gate
        self._reading = _Reading.HEADER
        self._since_s = loop.time()
        self._header_bytes = 0
        self._body_bytes = 0
        self._body_since_s = 0.0
        self._chunks = 0
        self._is_refused = False
        self._task: asyncio.Task[None] | None = None
        #: The request the task works on; `cycle` is the latest to arrive, which may still wait its turn behind it.
        self._running: RequestResponseCycle | None = None
        self._unsent_bytes = 0
        self._unsent_since_s = 0.0

    def sweep(self, now_s: float) -> None:
        """Ends the connection if its client is slower than the limits allow."""
        limits = self._limits
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, now_s
        elif unsent_bytes and now_s - self._unsent_since_s > limits.write_idle_timeout_s:
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        if self._is_refused:
            if now_s - self._since_s > _LINGER_S:
                self.transport.abort()
        elif self._reading is _Reading.HEADER and now_s - self._since_s > limits.header_timeout_s:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no complete header within {limits.header_timeout_s:g} s")
        elif self._reading is _Reading.BODY and not self.flow.read_paused:
            if now_s - self._since_s > limits.body_idle_timeout_s:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no further byte of the body within {limits.body_idle_timeout_s:g} s")
                return
            paid_for_s = self._body_bytes / limits.body_bytes_per_s
            if now_s - self._body_since_s > limits.body_idle_timeout_s + paid_for_s:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the body comes slower than {limits.body_bytes_per_s} bytes a second")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._gate.admits(len(self.connections), self.loop.time()):
            # Closed at once, without waiting for the client's end: what comes in numbers must not hold a file each.
            self._is_refused = True
            transport.write(_answer(HTTPStatus.SERVICE_UNAVAILABLE, "the server holds as many connections as it may: try again"))
            transport.close()

    def shutdown(self) -> None:
        if self._is_refused:
            self.transport.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_work()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        was_in_header = self._reading is _Reading.HEADER
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Another protocol was only offered; the request itself has been taken in, and is answered in this one.
            return
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST, "invalid HTTP request")
            return
        if self._reading is _Reading.HEADER:
            self._header_bytes += len(data) if was_in_header else 0
            if self._header_bytes > self._limits.header_bytes + self._limits.url_bytes:
                self._refuse_header()
        elif self._reading is _Reading.NOTHING and (self.cycle is None or self.cycle.response_complete):
            # Bytes that begin no message (blank lines) do not keep a connection alive.
            self._expect_header()

    def on_message_begin(self) -> None:
        if not self._is_refused:
            if self._reading is not _Reading.HEADER:
                self._expect_header()
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_refused:
            return
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"the request target exceeds {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_refused:
            return
        super().on_header(name, value)
        if len(self.headers) > self._limits.header_count:
            self._refuse_header()

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        if not self._check_header():
            return
        # Raises for a target it cannot read: then this is still a header that is refused.
        super().on_headers_complete()
        self._reading = _Reading.BODY
        self._since_s = self._body_since_s = self.loop.time()
        self._body_bytes = self._chunks = 0

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > self._limits.chunk_count and not self._is_refused:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self._limits.chunk_count} chunks")

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._body_bytes += len(body)
        self._since_s = self.loop.time()
        if self.cycle.response_complete and self._body_bytes > self._limits.http_body_bytes:
            # Answered without a look at its body, and more of it comes than anybody would have read.
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self._reading = _Reading.NOTHING
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self.loop.create_task(cycle.run_asgi(app))
        self._task, self._running = task, cycle
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _expect_header(self) -> None:
        self._reading = _Reading.HEADER
        self._since_s = self.loop.time()
        self._header_bytes = 0

    def _check_header(self) -> bool:
        """Whether the header is one to go on with; else it has been refused."""
        size = hosts = declared = 0
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                # The parser has checked that it is a decimal number.
                declared = int(value)
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._refuse(HTTPStatus.NOT_IMPLEMENTED, "the only Transfer-Encoding that is read here is chunked")
                return False
        most = self._limits.http_body_bytes
        if size > self._limits.header_bytes:
            self._refuse_header()
        elif hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refuse(HTTPStatus.BAD_REQUEST, "an HTTP/1.1 request needs exactly one Host header")
        elif declared > most:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body of {declared} bytes exceeds the limit of {most} bytes")
        return not self._is_refused

    def _refuse_header(self) -> None:
        limits = self._limits
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the header exceeds {limits.header_bytes} bytes or {limits.header_count} fields",
        )

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answers with `status`, unless an answer is under way or due to an earlier request, and closes."""
        if self._is_refused:
            return
        self._is_refused = True
        running = self._running
        if self._reading is _Reading.BODY:
            may_answer = running is self.cycle and not self.cycle.response_started
        else:
            may_answer = running is None or running.response_complete
        if may_answer:
            self.transport.write(_answer(status, text))
        self._cancel_work()
        # A close now, with bytes unread, would reset the connection and might take the answer with it: end our side, and drop what
        # comes until the client has ended its own.
        self._since_s = self.loop.time()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _cancel_work(self) -> None:
        self.pipeline.clear()
        running = self._running
        if running is None or self._task is None or self._task.done():
            return
        running.disconnected = True
        running.message_event.set()
        running.scope[CLIENT_GONE] = True  # type: ignore[literal-required]
        self._task.cancel()


def _answer(status: HTTPStatus, text: str) -> bytes:
    body = orjson.dumps({"error": text})
    return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        status.value,
        status.phrase.encode(),
        len(body),
        body,
    )
