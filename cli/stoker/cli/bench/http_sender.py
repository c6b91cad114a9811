"""Sends one prepared HTTP/1.1 request repeatedly; only its first response and errors are parsed completely.

The sender opens one connection for each request in flight. A general client would cost more for each request than the servers that it
measures.
"""

import asyncio
import time
from typing import Any

import httptools

from stoker.cli.bench.sender import (
    CLOSED,
    MAX_RESPONSE_BYTES,
    RequestFailed,
    Trip,
    check_response,
    open_connection,
    reason_of,
    send_without_delay,
    tls_context,
)
from stoker_client.dialect import Call
from stoker_client.http_dialect import HttpReply
from stoker_client.inference import InferResult
from stoker_client.settings import Connection

_now_ns = time.perf_counter_ns


class HttpSender:
    """A `Sender` with one persistent connection for each request in flight.

    Attributes:
        result: The first response; None: there is none yet.
    """

    def __init__(self, connection: Connection, call: Call[InferResult], timeout_s: float) -> None:
        self.result: InferResult | None = None
        self._connection = connection
        self._tls = tls_context(connection)
        self._timeout_s = timeout_s
        self._call = call
        self._idle: list[_HttpConnection] = []
        endpoint, request = connection.endpoint, call.request
        headers = {
            "host": endpoint.host if endpoint.socket_path else endpoint.authority,
            "user-agent": "stoker-bench",
            "content-length": str(len(request.body)),
            **connection.headers,
            **request.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._request = f"{request.method} {endpoint.path}{request.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + request.body

    async def send(self) -> Trip:
        """See `Sender`."""
        begun_ns = _now_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._kept() or await open_connection(self._connection, self._tls, _HttpConnection)
                try:
                    response = connection.send(self._request)
                    sent_ns = _now_ns()
                    reply = await response
                # after a cancelled request the connection still receives its response, which is not that of the next request
                except BaseException:
                    connection.abort()
                    raise
        except TimeoutError as error:
            raise RequestFailed(f"no response within {self._timeout_s:g} s") from error
        except (OSError, httptools.HttpParserError) as error:
            raise RequestFailed(reason_of(error)) from error
        arrived_ns = connection.arrived_ns
        if connection.can_be_kept:
            self._idle.append(connection)
        if self.result is None or reply.status != 200:
            self.result = check_response(self._call, reply)
        return Trip(sent_ns - begun_ns, _now_ns() - arrived_ns)

    async def close(self) -> None:
        """Closes the idle connections; none is busy once the load has ended."""
        for connection in self._idle:
            connection.abort()

    def _kept(self) -> "_HttpConnection | None":
        """An idle connection that the server has not closed; None: there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_be_kept:
                return connection
        return None


class _HttpConnection(asyncio.Protocol):
    """A connection with one request at a time.

    Attributes:
        can_be_kept: Whether another request may be sent.
        arrived_ns: When the last response was complete, nanoseconds.
    """

    def __init__(self) -> None:
        self.can_be_kept = True
        self.arrived_ns = 0
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[HttpReply] | None = None
        self._begin()

    def send(self, request: bytes) -> "asyncio.Future[HttpReply]":
        """Sends the request; the future has the response.

        Raises:
            ConnectionError: The connection is lost.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError(CLOSED)
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._response

    def abort(self) -> None:
        """Closes the connection at once."""
        self.can_be_kept = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        send_without_delay(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.can_be_kept = False
        self._fail(error or ConnectionResetError(CLOSED))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_RESPONSE_BYTES:
            self._fail(OSError(f"the response is over {MAX_RESPONSE_BYTES} bytes"))
            self.abort()
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self.arrived_ns = _now_ns()
        self.can_be_kept = self.can_be_kept and self._parser.should_keep_alive()
        reply = HttpReply(self._parser.get_status_code(), self._headers, b"".join(self._parts))
        self._begin()
        if self._response is None or self._response.done():  # unsolicited: the server states why it closes an idle connection
            self.abort()
        else:
            self._response.set_result(reply)

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
