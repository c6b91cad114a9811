"""One prepared request over gRPC or HTTP/1.1, sent again and again; what comes back is read as far as its status, the first answer whole.

The gRPC sender is grpcio's; the HTTP one keeps its own connections, as many as there are requests in flight, because a general client costs
more for each request than the servers that are measured.
"""

import asyncio
import socket
import ssl
import time
from typing import Any

import httptools

from stoker.cli.bench.loops import RequestFailed, Trip
from stoker_client.dialect import Call
from stoker_client.errors import StokerError
from stoker_client.grpc_client import channel_credentials, channel_options
from stoker_client.http_client import ssl_context
from stoker_client.http_dialect import HttpReply
from stoker_client.inference import InferResult
from stoker_client.settings import Connection

_now_ns = time.perf_counter_ns
#: Bytes of one answer.
_MAX_RESPONSE_BYTES = 2**31 - 1


class GrpcSender:
    """Sends a call over `channels` connections in turn. Confined to: the event loop it is opened in."""

    def __init__(self, connection: Connection, call: Call[InferResult], timeout_s: float, channels: int) -> None:
        import grpc.aio

        self._errors = grpc.RpcError
        self._metadata = tuple(connection.headers.items())
        self._timeout_s = timeout_s
        self._request: bytes = call.request.message.SerializeToString()
        self._call = call
        endpoint = connection.endpoint
        credentials = channel_credentials(connection.tls) if endpoint.secure else None
        # Channels alike would share one connection.
        options = [*channel_options(connection), ("grpc.use_local_subchannel_pool", 1)]
        make = grpc.aio.insecure_channel
        self._channels = [
            make(endpoint.authority, options) if credentials is None else grpc.aio.secure_channel(endpoint.authority, credentials, options)
            for _ in range(channels)
        ]
        self._methods = [channel.unary_unary(call.request.path) for channel in self._channels]
        self._turn = 0
        self._is_read = False

    async def send(self) -> Trip:
        """See `Sender`."""
        method = self._methods[self._turn % len(self._methods)]
        self._turn += 1
        begun_ns = _now_ns()
        call = method(self._request, timeout=self._timeout_s, metadata=self._metadata)
        sent_ns = _now_ns()
        try:
            answer = await call
        except self._errors as error:
            raise RequestFailed(f"{error.code().name}: {error.details()}") from error
        arrived_ns = _now_ns()
        if not self._is_read:
            _read(self._call, self._call.request.reply.FromString(answer))
            self._is_read = True
        return Trip(sent_ns - begun_ns, _now_ns() - arrived_ns)

    async def close(self) -> None:
        """Closes all connections."""
        for channel in self._channels:
            await channel.close()


class HttpSender:
    """Sends a request over as many kept connections as are in use at once. Confined to: the event loop it is opened in."""

    def __init__(self, connection: Connection, call: Call[InferResult], timeout_s: float) -> None:
        self._endpoint = connection.endpoint
        self._certified_name = None if connection.tls is None else connection.tls.server_name
        self._ssl: ssl.SSLContext | None = ssl_context(connection) if connection.endpoint.secure else None
        self._timeout_s = timeout_s
        self._call = call
        request = call.request
        headers = {
            "host": self._endpoint.host if self._endpoint.socket_path else self._endpoint.authority,
            "user-agent": "stoker-bench",
            "content-length": str(len(request.body)),
            **connection.headers,
            **request.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._request = f"{request.method} {self._endpoint.path}{request.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + request.body
        self._idle: list[_HttpConnection] = []
        self._is_read = False

    async def send(self) -> Trip:
        """See `Sender`."""
        begun_ns = _now_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._kept() or await self._connect()
                try:
                    answer = connection.send(self._request)
                    sent_ns = _now_ns()
                    reply = await answer
                except BaseException:  # a cancelled request too leaves an answer behind, which the next would take for its own
                    connection.abort()
                    raise
        except TimeoutError as error:
            raise RequestFailed(f"no answer within {self._timeout_s:g} s") from error
        except (OSError, httptools.HttpParserError) as error:
            raise RequestFailed(str(error) or type(error).__name__) from error
        arrived_ns = connection.arrived_ns
        if connection.can_be_kept:
            self._idle.append(connection)
        if not self._is_read or reply.status != 200:
            _read(self._call, reply)
            self._is_read = True
        return Trip(sent_ns - begun_ns, _now_ns() - arrived_ns)

    async def close(self) -> None:
        """Closes the connections that are idle; none is busy once the load has ended."""
        for connection in self._idle:
            connection.abort()

    def _kept(self) -> "_HttpConnection | None":
        """An idle connection that the server has not closed meanwhile; None: there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_be_kept:
                return connection
        return None

    async def _connect(self) -> "_HttpConnection":
        loop = asyncio.get_running_loop()
        where = self._endpoint
        if where.socket_path:
            _, connection = await loop.create_unix_connection(_HttpConnection, where.socket_path)
        else:
            _, connection = await loop.create_connection(
                _HttpConnection, where.host, where.port, ssl=self._ssl, server_hostname=self._certified_name
            )
        return connection


def _read(call: Call[InferResult], reply: Any) -> None:
    try:
        call.parse(reply)
    except StokerError as error:
        raise RequestFailed(error.message) from error


class _HttpConnection(asyncio.Protocol):
    """One connection, one request at a time.

    Attributes:
        can_be_kept: Whether it takes another request.
        arrived_ns: When the last answer was complete.
    """

    def __init__(self) -> None:
        self.can_be_kept = True
        self.arrived_ns = 0
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[HttpReply] | None = None
        self._begin()

    def send(self, request: bytes) -> "asyncio.Future[HttpReply]":
        """Sends; the future holds the answer.

        Raises:
            ConnectionError: the connection is gone.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._response

    def abort(self) -> None:
        """Ends it at once."""
        self.can_be_kept = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        plain = transport.get_extra_info("socket")
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        self.can_be_kept = False
        self._fail(error or ConnectionResetError("the server closed the connection"))

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
        if self._size > _MAX_RESPONSE_BYTES:
            self._fail(OSError(f"the answer is over {_MAX_RESPONSE_BYTES} bytes"))
            self.abort()
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self.arrived_ns = _now_ns()
        self.can_be_kept = self.can_be_kept and self._parser.should_keep_alive()
        reply = HttpReply(self._parser.get_status_code(), self._headers, b"".join(self._parts))
        self._begin()
        if self._response is not None and not self._response.done():
            self._response.set_result(reply)

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
