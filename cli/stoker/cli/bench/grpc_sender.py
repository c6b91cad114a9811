"""Sends one prepared gRPC call repeatedly over HTTP/2 (RFC 9113); only its first response is parsed completely.

grpcio's client costs more per call than the servers it measures. Here the message is encoded once, and the header block once per
connection: the first call adds the fields to the server's header table, and later calls refer to them by index, as gRPC clients do.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import grpc
import hpack

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
from stoker_client.inference import InferResult
from stoker_client.settings import Connection

_now_ns = time.perf_counter_ns

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 1, 2, 3, 4, 5
_REFUSED_STREAM, _CANCEL = 7, 8
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD_BYTES, _TABLE_BYTES, _DEFAULT_WINDOW, _WIDEST_WINDOW = 9, 4096, 65_535, 2**31 - 1
#: A byte of at least this value is an indexed field: a block of such bytes alone does not change the header table.
_INDEXED = 0x80
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}

Fields = Sequence[tuple[Any, ...]]


class _Refused(Exception):
    """The server has not processed the call: it may be sent once more. `str()` names the refusal."""


class GrpcSender:
    """A `Sender` over `channels` connections in turn; reopens a lost one.

    Attributes:
        result: The first response; None: there is none yet.
    """

    def __init__(self, connection: Connection, call: Call[InferResult], timeout_s: float, channels: int) -> None:
        self.result: InferResult | None = None
        self._connection = connection
        self._tls = tls_context(connection, "h2")
        self._timeout_s = timeout_s
        self._call = call
        message = call.request.message.SerializeToString()
        self._body = b"\0" + struct.pack(">I", len(message)) + message
        endpoint = connection.endpoint
        fields = {
            ":method": "POST",
            ":scheme": "https" if endpoint.secure else "http",
            ":path": call.request.path,
            ":authority": "localhost" if endpoint.socket_path else endpoint.authority,
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "stoker-bench",
            "grpc-timeout": f"{min(round(timeout_s * 1000), 99_999_999)}m",
        }
        # The user's headers may contain keys, which must not be added to the header table.
        self._fields: Fields = [*fields.items(), *(hpack.NeverIndexedHeaderTuple(*each) for each in connection.headers.items())]
        self._connections: list[_H2Connection | None] = [None] * channels
        self._locks = [asyncio.Lock() for _ in range(channels)]
        self._turn = 0

    async def send(self) -> Trip:
        """See `Sender`."""
        begun_ns = _now_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                is_retry = False
                while True:
                    try:
                        connection = await self._ready()
                        stream, response = connection.call(self._body)
                        sent_ns = _now_ns()
                        try:
                            parts = await response
                        except asyncio.CancelledError:
                            connection.cancel(stream)
                            raise
                        break
                    except _Refused as refusal:
                        if is_retry:
                            raise RequestFailed(f"UNAVAILABLE: the server refused the call and its retry: {refusal}") from refusal
                        is_retry = True
        except TimeoutError as error:
            raise RequestFailed(f"DEADLINE_EXCEEDED: no response within {self._timeout_s:g} s") from error
        except OSError as error:
            raise RequestFailed(f"UNAVAILABLE: {reason_of(error)}") from error
        arrived_ns = connection.arrived_ns
        if self.result is None:
            self.result = check_response(self._call, self._call.request.reply.FromString(b"".join(parts)[5:]))
        return Trip(sent_ns - begun_ns, _now_ns() - arrived_ns)

    async def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections:
            if connection is not None:
                connection.close()

    async def _ready(self) -> "_H2Connection":
        """The next connection in turn, as soon as the server allows another stream on it.

        A call may wait through several connections, as long as each of them takes some call.

        Raises:
            _Refused: The connection ended before it took any call.
        """
        at = self._turn = (self._turn + 1) % len(self._connections)
        while True:
            connection = self._connections[at]
            if connection is None or not connection.is_usable:
                async with self._locks[at]:
                    connection = self._connections[at]
                    if connection is None or not connection.is_usable:
                        connection = await open_connection(self._connection, self._tls, lambda: _H2Connection(self._fields))
                        await connection.settled
                        self._connections[at] = connection
            while connection.is_full and connection.is_usable:
                await connection.wait_for_stream()
            if connection.is_usable:
                return connection
            if connection.is_unused:
                raise _Refused("a new connection ended before its first call")


class _Stream:
    __slots__ = ("http_status", "parts", "response", "size", "unsent", "window")

    def __init__(self, response: "asyncio.Future[list[bytes]]", body: bytes, window: int) -> None:
        self.response = response
        self.parts: list[bytes] = []
        self.size = 0
        self.unsent = memoryview(body)
        self.window = window
        self.http_status = "200"


class _H2Connection(asyncio.Protocol):
    """One HTTP/2 connection.

    Attributes:
        settled: Done when the server's settings have arrived.
        is_usable: Whether the connection accepts new calls.
        arrived_ns: When the last response was complete, nanoseconds.
    """

    def __init__(self, fields: Fields) -> None:
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_usable = True
        self.arrived_ns = 0
        self._fields = fields
        self._block = self._later_block = b""
        self._decoder = hpack.Decoder()
        self._decoded: dict[bytes, dict[str, str]] = {}
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._blocked: deque[int] = deque()  # streams whose message has not left completely
        self._waiting: deque[asyncio.Future[None]] = deque()  # calls that wait for a stream
        self._next_stream = 1
        self._window = self._stream_window = _DEFAULT_WINDOW
        self._max_frame = 16_384
        self._max_streams = _WIDEST_WINDOW
        self._received = 0
        self._rest = b""
        self._headers: tuple[bytes, int] = (b"", 0)  # a header block that is not complete, and the flags of its first frame

    @property
    def is_unused(self) -> bool:
        return self._next_stream == 1

    @property
    def is_full(self) -> bool:
        return len(self._streams) >= self._max_streams

    async def wait_for_stream(self) -> None:
        """Returns when a stream has ended, or the connection is lost."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def call(self, body: bytes) -> "tuple[int, asyncio.Future[list[bytes]]]":
        """Starts a call on a usable connection; the future holds the response with its five-byte prefix, in parts."""
        number = self._next_stream
        self._next_stream += 2
        stream = self._streams[number] = _Stream(asyncio.get_running_loop().create_future(), body, self._stream_window)
        block, self._block = self._block, self._later_block
        size = len(body)
        if size <= self._window and size <= stream.window and size <= self._max_frame and not self._blocked:
            self._window -= size
            stream.unsent = memoryview(b"")
            self._write(_frame(_HEADERS, _END_HEADERS, number, block) + _frame(_DATA, _END_STREAM, number, body))
        else:
            self._write(_frame(_HEADERS, _END_HEADERS, number, block))
            self._blocked.append(number)
            self._send_blocked()
        return number, stream.response

    def cancel(self, number: int) -> None:
        """Resets a stream whose response is no longer needed."""
        if self._streams.pop(number, None) is not None:
            self._write(_frame(_RST_STREAM, 0, number, struct.pack(">I", _CANCEL)))
            self._wake()

    def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        send_without_delay(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._break(OSError("the server does not offer HTTP/2 over TLS"))
            return
        settings = struct.pack(">HIHI", _ENABLE_PUSH, 0, _INITIAL_WINDOW, _WIDEST_WINDOW)
        widen = struct.pack(">I", _WIDEST_WINDOW - _DEFAULT_WINDOW)
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, widen))

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error if isinstance(error, OSError) else ConnectionResetError(CLOSED))

    def data_received(self, data: bytes) -> None:
        received = self._rest + data if self._rest else data
        at, end = 0, len(received)
        while end - at >= _FRAME_HEAD_BYTES:
            stop = at + _FRAME_HEAD_BYTES + int.from_bytes(received[at : at + 3], "big")
            if not self.settled.done() and received[at + 3] != _SETTINGS:
                self._break(OSError("the server does not speak HTTP/2"))
                return
            if stop > end:
                break
            number = int.from_bytes(received[at + 5 : at + 9], "big") & 0x7FFFFFFF
            try:
                self._take(received[at + 3], received[at + 4], number, received[at + _FRAME_HEAD_BYTES : stop])
            except (hpack.HPACKError, ValueError, IndexError, struct.error) as error:
                self._break(OSError(f"the server sent a malformed HTTP/2 frame: {error}"))
                return
            at = stop
        self._rest = received[at:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _DATA:
            self._take_data(flags, number, payload)
        elif kind == _HEADERS:
            block = payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            self._headers = (block[5:] if flags & _PRIORITY else block, flags)
        elif kind == _CONTINUATION:
            self._headers = (self._headers[0] + payload, self._headers[1])
        elif kind == _WINDOW_UPDATE:
            self._widen(number, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply_settings(payload)
        elif kind == _RST_STREAM:
            code = int.from_bytes(payload, "big")
            is_refusal = code == _REFUSED_STREAM
            self._end(number, _Refused("REFUSED_STREAM") if is_refusal else RequestFailed(f"the server reset the stream with code {code}"))
        elif kind == _GOAWAY:
            self._drain(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big"))
        if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
            self._take_headers(number, *self._headers)

    def _take_headers(self, number: int, block: bytes, flags: int) -> None:
        fields = self._decoded.get(block)
        if fields is None:
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
            if min(block, default=0) < _INDEXED:
                self._decoded.clear()
            else:
                self._decoded[block] = fields
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.http_status = fields.get(":status", stream.http_status)
        if not flags & _END_STREAM:
            return
        status = fields.get("grpc-status")
        if status is None:
            self._end(number, RequestFailed(f"no gRPC response: HTTP status {stream.http_status}"))
        elif status != "0":
            name = _NAMES.get(int(status), f"status {status}")
            self._end(number, RequestFailed(f"{name}: {unquote(fields.get('grpc-message', ''))}"))
        elif stream.size < 5 or stream.size != 5 + int.from_bytes(b"".join(stream.parts[:5])[1:5], "big"):
            self._end(number, RequestFailed(f"no gRPC response: {stream.size} bytes are not one message"))
        else:
            self._end(number, None)

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > _WIDEST_WINDOW // 2:
            self._write(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        stream = self._streams.get(number)
        if stream is None:
            return
        if payload:
            stream.parts.append(payload)
            stream.size += len(payload)
        if stream.size > MAX_RESPONSE_BYTES + 5:
            self.cancel(number)
            stream.response.set_exception(RequestFailed(f"the response is over {MAX_RESPONSE_BYTES} bytes"))
        elif flags & _END_STREAM:
            self._end(number, RequestFailed(f"no gRPC response: HTTP status {stream.http_status}"))

    def _end(self, number: int, error: Exception | None) -> None:
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        self.arrived_ns = _now_ns()
        if not stream.response.done():
            if error is None:
                stream.response.set_result(stream.parts)
            else:
                stream.response.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        while self._waiting and not (self.is_full and self.is_usable):
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                if self.is_usable:
                    return
        if not self.is_usable and not self._streams:
            self.close()

    def _drain(self, last: int, code: int) -> None:
        """The server takes no new streams, and has not processed those after `last`."""
        self.is_usable = False
        for number in [each for each in self._streams if each > last]:
            self._end(number, _Refused(f"GOAWAY with code {code}"))
        self._wake()

    def _break(self, error: OSError) -> None:
        if not self.settled.done():
            self.settled.set_exception(error)
        self.close()
        self._transport = None
        for number in list(self._streams):
            self._end(number, error)
        self._wake()

    def _apply_settings(self, payload: bytes) -> None:
        table_bytes = _TABLE_BYTES
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif name == _MAX_FRAME:
                self._max_frame = value
            elif name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _HEADER_TABLE_SIZE:
                table_bytes = min(value, _TABLE_BYTES)
        self._write(_frame(_SETTINGS, _ACK, 0))
        if not self.settled.done():
            encoder = hpack.Encoder()
            if table_bytes < _TABLE_BYTES:
                encoder.header_table_size = 0
            self._block, self._later_block = (encoder.encode(self._fields) for _ in range(2))
            self.settled.set_result(None)
        self._send_blocked()
        self._wake()

    def _widen(self, number: int, credit: int) -> None:
        if number == 0:
            self._window += credit
        elif number in self._streams:
            self._streams[number].window += credit
        self._send_blocked()

    def _send_blocked(self) -> None:
        """Sends the data that the windows allow, in the order of the calls; a stream without credit does not delay the next."""
        frames: list[bytes | memoryview] = []
        stuck: deque[int] = deque()
        while self._blocked and self._window > 0:
            number = self._blocked.popleft()
            stream = self._streams.get(number)
            if stream is None:
                continue
            while stream.unsent and self._window > 0 and stream.window > 0:
                size = min(len(stream.unsent), self._window, stream.window, self._max_frame)
                chunk, stream.unsent = stream.unsent[:size], stream.unsent[size:]
                self._window -= size
                stream.window -= size
                frames += _frame_head(_DATA, 0 if stream.unsent else _END_STREAM, number, size), chunk
            if stream.unsent:
                stuck.append(number)
        stuck.extend(self._blocked)
        self._blocked = stuck
        if frames and self._transport is not None:
            self._transport.writelines(frames)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    return struct.pack(">IBI", size << 8 | kind, flags, stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _frame_head(kind, flags, stream, len(payload)) + payload
