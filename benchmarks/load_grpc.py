"""A lean gRPC client: unary calls of one prepared message over HTTP/2 connections of its own.

grpcio's client costs about as much CPU per call as the servers measured here, so it would measure itself. This one costs a fifth of that:
the request's header block and message are the same bytes in every call (headers go into the server's table with the first call and are
named by number afterwards, as gRPC clients do), only the stream number changes. Of the answer, frames are read and header blocks are
skipped: a unary call that failed has no message, so a complete message followed by trailers is what counts as a good answer.

Kept of HTTP/2 (RFC 9113): settings, both flow-control windows, frame size, ping, stream limits, RST_STREAM and GOAWAY.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import cast

from benchmarks.loops import Done

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 1, 2, 3, 4, 5
_REFUSED_STREAM = struct.pack(">I", 7)
_DEFAULT_WINDOW = 65_535
_WIDEST_WINDOW = 2**31 - 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD = 9

METHOD = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The nine bytes before a frame's payload of `size` bytes."""
    return struct.pack(">IBI", size << 8 | kind, flags, stream)


def header_blocks(path: str, authority: str) -> tuple[bytes, bytes]:
    """The request's headers in HPACK: for a connection's first call (which enters them into the table), and for all later ones."""
    static = b"\x83\x86"  # :method POST, :scheme http
    fields: list[tuple[bytes, str]] = [  # how the name is given (static table number, or in full), and the value
        (b"\x44", path),
        (b"\x41", authority),
        (b"\x5f", "application/grpc"),
        (b"\x40" + _hpack_text("te"), "trailers"),
        (b"\x7a", "stoker-benchmarks"),
    ]
    first = static + b"".join(name + _hpack_text(value) for name, value in fields)
    later = static + bytes(0x80 | 62 + len(fields) - 1 - position for position in range(len(fields)))
    return first, later


def _hpack_text(text: str) -> bytes:
    raw = text.encode("ascii")
    if len(raw) >= 127:
        raise ValueError(f"header value '{text}' is {len(raw)} characters: expected under 127")
    return bytes([len(raw)]) + raw


class GrpcSender:
    """Sends `message` as unary calls over `connections` HTTP/2 connections, always on the one with the fewest calls.

    Its answers may be of any size: their frames are put together only for those that look at them.
    """

    def __init__(self, host: str, port: int, message: bytes, connections: int, path: str = METHOD) -> None:
        self._address = (host, port)
        self._call_body = b"\0" + struct.pack(">I", len(message)) + message
        self._blocks = header_blocks(path, f"{host}:{port}")
        self._connections = [_Connection(self, self._call_body, self._blocks) for _ in range(connections)]
        self._queued: deque[Done] = deque()
        self._response: list[bytes] = []

    @property
    def reply(self) -> bytes:
        """The last good answer's message; empty where there was none."""
        return b"".join(self._response)[5:]

    async def connect(self) -> None:
        """Opens all connections and waits for the server's settings.

        Raises:
            OSError: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        for connection in self._connections:
            await loop.create_connection(lambda made=connection: made, *self._address)  # type: ignore[misc]
            await asyncio.wait_for(connection.settled.wait(), timeout=10)

    def send(self, done: Done) -> None:
        """Starts a call, or queues it while the server's stream limits are reached."""
        connection = min(self._connections, key=_Connection.load) if len(self._connections) > 1 else self._connections[0]
        if connection.is_full():
            self._queued.append(done)
        else:
            connection.call(done)

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            connection.close()

    def freed(self, connection: "_Connection", reply: list[bytes] | None) -> None:
        """A call of `connection` has ended: well, where it brings the parts of its answer."""
        if reply is not None:
            self._response = reply
        if self._queued and not connection.is_full():
            connection.call(self._queued.popleft())


class _Call:
    __slots__ = ("done", "parts", "size", "unsent", "window")

    def __init__(self, done: Done, unsent: memoryview, window: int) -> None:
        self.done = done
        self.parts: list[bytes] = []
        self.size = 0
        self.unsent = unsent
        self.window = window


class _Connection(asyncio.Protocol):
    def __init__(self, sender: GrpcSender, call_body: bytes, blocks: tuple[bytes, bytes]) -> None:
        self.settled = asyncio.Event()
        self._sender = sender
        self._call_body = call_body
        self._block, self._later_block = blocks
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._blocked: deque[int] = deque()  # streams whose message has not left completely
        self._next_stream = 1
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._max_frame = 16_384
        self._max_streams = _WIDEST_WINDOW
        self._received = 0
        self._rest = b""

    def load(self) -> int:
        """Calls in flight; a lost connection has more than any other."""
        return len(self._calls) if self._transport is not None else _WIDEST_WINDOW

    def is_full(self) -> bool:
        return len(self._calls) >= self._max_streams

    def call(self, done: Done) -> None:
        transport = self._transport
        if transport is None:
            asyncio.get_running_loop().call_soon(done, False)
            return
        stream = self._next_stream
        self._next_stream += 2
        block, self._block = self._block, self._later_block
        head = frame(_HEADERS, _END_HEADERS, stream, block)
        body = self._call_body
        size = len(body)
        call = _Call(done, memoryview(body), self._stream_window)
        self._calls[stream] = call
        if size <= self._window and size <= call.window and size <= self._max_frame and not self._blocked:
            self._window -= size
            call.unsent = memoryview(b"")
            transport.write(head + frame(_DATA, _END_STREAM, stream, body))
        else:
            transport.write(head)
            self._blocked.append(stream)
            self._send_blocked()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        settings = struct.pack(">HIHI", _ENABLE_PUSH, 0, _INITIAL_WINDOW, _WIDEST_WINDOW)
        widen = struct.pack(">I", _WIDEST_WINDOW - _DEFAULT_WINDOW)
        self._write(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, widen))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for stream in list(self._calls):
            self._finish(stream, False)

    def data_received(self, data: bytes) -> None:
        received = self._rest + data if self._rest else data
        at, end = 0, len(received)
        while end - at >= _FRAME_HEAD:
            length = int.from_bytes(received[at : at + 3], "big")
            stop = at + _FRAME_HEAD + length
            if stop > end:
                break
            kind, flags = received[at + 3], received[at + 4]
            stream = int.from_bytes(received[at + 5 : at + 9], "big") & 0x7FFFFFFF
            payload = received[at + _FRAME_HEAD : stop]
            at = stop
            if kind == _HEADERS:
                if flags & _END_STREAM:
                    self._finish(stream, self._has_message(stream))
            elif kind == _DATA:
                self._take_data(stream, flags, payload)
            else:
                self._control(kind, flags, stream, payload)
        self._rest = received[at:]

    def _take_data(self, stream: int, flags: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > _WIDEST_WINDOW // 2:
            self._write(frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        call = self._calls.get(stream)
        if call is not None:
            if payload:
                call.parts.append(payload)
                call.size += len(payload)
            if flags & _END_STREAM:  # no trailers, so no status: not an answer of gRPC
                self._finish(stream, False)

    def _has_message(self, stream: int) -> bool:
        call = self._calls.get(stream)
        if call is None or call.size < 5:
            return False
        head = call.parts[0] if len(call.parts[0]) >= 5 else b"".join(call.parts[:5])
        return call.size == 5 + int.from_bytes(head[1:5], "big")

    def _finish(self, stream: int, is_good: bool) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            return
        self._sender.freed(self, call.parts if is_good else None)
        call.done(is_good)

    def _try_again(self, stream: int) -> None:
        """The server refused a stream unseen, because to it another one had not ended yet: gRPC clients send such a call anew."""
        call = self._calls.pop(stream, None)
        if call is not None:
            asyncio.get_running_loop().call_soon(self._sender.send, call.done)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif kind == _PING and not flags & _ACK:
            self._write(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply_settings(payload)
            self._write(frame(_SETTINGS, _ACK, 0))
            self.settled.set()
            self._send_blocked()
        elif kind == _RST_STREAM and payload == _REFUSED_STREAM:
            self._try_again(stream)
        elif kind == _RST_STREAM:
            self._finish(stream, False)
        elif kind == _GOAWAY:
            self.close()

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._stream_window
                self._stream_window = value
            elif name == _MAX_FRAME:
                self._max_frame = value
            elif name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _HEADER_TABLE_SIZE and value < 4096:
                raise ValueError(f"the server allows a header table of {value} bytes: this client needs 4096")

    def _widen(self, stream: int, credit: int) -> None:
        if stream == 0:
            self._window += credit
        elif stream in self._calls:
            self._calls[stream].window += credit
        if self._blocked:
            self._send_blocked()

    def _send_blocked(self) -> None:
        """Sends what the windows allow, in the order of the calls; a stream without credit does not hold up the next."""
        frames: list[bytes | memoryview] = []
        stuck: deque[int] = deque()
        while self._blocked and self._window > 0:
            stream = self._blocked.popleft()
            call = self._calls.get(stream)
            if call is None:
                continue
            while call.unsent and self._window > 0 and call.window > 0:
                size = min(len(call.unsent), self._window, call.window, self._max_frame)
                chunk, call.unsent = call.unsent[:size], call.unsent[size:]
                self._window -= size
                call.window -= size
                frames += frame_head(_DATA, 0 if call.unsent else _END_STREAM, stream, size), chunk
            if call.unsent:
                stuck.append(stream)
        stuck.extend(self._blocked)
        self._blocked = stuck
        if frames and self._transport is not None:
            self._transport.writelines(frames)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
