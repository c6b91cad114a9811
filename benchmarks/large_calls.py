"""Closed loops of gRPC calls with messages of many MB, by a client that costs little more CPU time than its sockets.

grpcio's client takes three quarters of a second of CPU time for 147 MB out and 257 MB in, several times as much as the server, and would be
what a benchmark on two cores measures. This client sends the frames of a message that was serialised before, as far as the server's
windows permit, and counts the bytes of the response without keeping them.
"""

import selectors
import socket
import statistics
import struct
import threading
import time
from contextlib import closing
from typing import Final, NamedTuple

from hpack import Decoder

from benchmarks.http2_requests import GrpcRequests, http2_frame

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
#: Half of the largest window: `GrpcRequests` enlarges it a little with each call. No response may be larger.
_OWN_WINDOW_BYTES: Final = 1 << 30
_DEFAULT_WINDOW_BYTES: Final = 65_535
_HEADER_BYTES: Final = 9
_READ_BYTES: Final = 1 << 20
#: Time without progress after which a call has failed, seconds.
_PATIENCE_S: Final = 60.0


class CallFailed(RuntimeError):
    """A call ended with a status other than 0, or not at all."""


class Loop(NamedTuple):
    """Figures of a closed loop: calls per second, and the mean latency in ms."""

    calls_per_s: float
    mean_ms: float


class _Receiver:
    """Cuts what the server sends into frames; the payload of DATA is only counted."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._payload = bytearray()
        self._left = 0
        self.data_bytes = 0

    def feed(self, data: memoryview) -> list[tuple[int, int, int, bytes]]:
        """Takes bytes; returns kind, flags, stream id and payload of the frames that they complete."""
        frames = []
        at = 0
        while at < len(data):
            if len(self._head) < _HEADER_BYTES:
                missing = _HEADER_BYTES - len(self._head)
                self._head += data[at : at + missing]
                at += missing
                if len(self._head) < _HEADER_BYTES:
                    break
                self._left = int.from_bytes(self._head[:3], "big")
            taken = min(self._left, len(data) - at)
            if self._head[3] == _DATA:
                self.data_bytes += taken
            else:
                self._payload += data[at : at + taken]
            at += taken
            self._left -= taken
            if not self._left:
                stream_id = int.from_bytes(self._head[5:9], "big")
                frames.append((self._head[3], self._head[4], stream_id, bytes(self._payload)))
                self._head.clear()
                self._payload.clear()
        return frames


class LargeCalls:
    """Unary calls of one method over one connection, one at a time."""

    def __init__(self, port: int, path: str, message: bytes) -> None:
        """`message` is the serialised request of every call."""
        self._head = GrpcRequests(b"", path)
        self._message = memoryview(b"\0" + struct.pack(">I", len(message)) + message)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._receiver = _Receiver()
        self._decoder = Decoder()
        self._window = _DEFAULT_WINDOW_BYTES
        self._initial_window = _DEFAULT_WINDOW_BYTES
        self._stream_window = 0
        self._frame_bytes = 16_384
        settings = struct.pack(">HIHI", _INITIAL_WINDOW_SIZE, _OWN_WINDOW_BYTES, _MAX_FRAME_SIZE, (1 << 24) - 1)
        grown = struct.pack(">I", _OWN_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self._queue: list[bytes | memoryview] = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(_SETTINGS, 0, 0, settings) + http2_frame(_WINDOW_UPDATE, 0, 0, grown)
        ]

    def call(self) -> int:
        """Makes one call; returns the bytes of the response.

        Raises:
            CallFailed: see there.
        """
        frames = self._head.next()
        stream_id = self._head.stream_id
        # Without the DATA frame of the empty message, which has five bytes.
        self._queue.append(frames[: -(_HEADER_BYTES + 5)])
        self._stream_window = self._initial_window
        begun_bytes, sent, ended = self._receiver.data_bytes, 0, False
        while not ended:
            sent = self._cut(stream_id, sent)
            self._selector.modify(self._socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if self._queue else 0))
            ready = self._selector.select(_PATIENCE_S)
            if not ready:
                raise CallFailed(f"nothing was sent or received for {_PATIENCE_S:g} s")
            if ready[0][1] & selectors.EVENT_WRITE:
                self._send()
            if ready[0][1] & selectors.EVENT_READ:
                size = self._socket.recv_into(self._buffer)
                if not size:
                    raise CallFailed("the server has closed the connection")
                for frame in self._receiver.feed(self._buffer[:size]):
                    ended = self._follow(*frame, stream_id) or ended
        received = self._receiver.data_bytes - begun_bytes
        self._queue.append(http2_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", received)))
        return received

    def close(self) -> None:
        """Closes the connection."""
        self._selector.close()
        self._socket.close()

    def _cut(self, stream_id: int, sent: int) -> int:
        """Puts the next DATA frame into the empty queue if the windows permit; returns the bytes of the message that were queued so far."""
        size = min(len(self._message) - sent, self._frame_bytes, self._window, self._stream_window)
        if self._queue or size <= 0:
            return sent
        self._window -= size
        self._stream_window -= size
        is_last = sent + size == len(self._message)
        head = http2_frame(_DATA, _END_STREAM if is_last else 0, stream_id)
        self._queue += (struct.pack(">I", size)[1:] + head[3:], self._message[sent : sent + size])
        return sent + size

    def _send(self) -> None:
        size = self._socket.sendmsg(self._queue)
        while self._queue and size >= len(self._queue[0]):
            size -= len(self._queue.pop(0))
        if size:
            self._queue[0] = memoryview(self._queue[0])[size:]

    def _follow(self, kind: int, flags: int, stream_id: int, payload: bytes, own_id: int) -> bool:
        """Handles a frame; returns whether it ends the call."""
        if kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if stream_id == 0:
                self._window += increment
            elif stream_id == own_id:
                self._stream_window += increment
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
                elif name == _MAX_FRAME_SIZE:
                    self._frame_bytes = value
            self._queue.append(http2_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._queue.append(http2_frame(_PING, _ACK, 0, payload))
        elif kind == _HEADERS:
            fields = {bytes(name): bytes(value) for name, value in self._decoder.decode(payload, raw=True)}
            if flags & _END_STREAM:
                if fields.get(b"grpc-status") != b"0":
                    raise CallFailed(f"status {fields.get(b'grpc-status', b'').decode()}: {fields.get(b'grpc-message', b'').decode()}")
                return True
        elif kind == _GOAWAY or (kind == _RST_STREAM and stream_id == own_id):
            raise CallFailed(f"the server has sent a frame of type {kind}: {payload!r}")
        return False


def large_closed_loop(port: int, path: str, message: bytes, *, in_flight: int, warmup_s: float, seconds: float) -> Loop:
    """`in_flight` connections, each with one call after the other, for `seconds` after `warmup_s`.

    Raises:
        CallFailed: a call has failed, or fewer than two ended in time.
    """
    ends: list[tuple[int, int]] = []
    failures: list[Exception] = []
    begun_ns = time.monotonic_ns()
    stop_ns = begun_ns + round((warmup_s + seconds) * 1e9)

    def run() -> None:
        try:
            with closing(LargeCalls(port, path, message)) as calls:
                now_ns = time.monotonic_ns()
                while now_ns < stop_ns:
                    calls.call()
                    then_ns, now_ns = now_ns, time.monotonic_ns()
                    ends.append((now_ns, now_ns - then_ns))
        except (CallFailed, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise CallFailed(str(failures[0]))
    ends.sort()
    window = [each for each in ends if each[0] >= begun_ns + warmup_s * 1e9]
    if len(window) < 2:
        raise CallFailed(f"{len(window)} calls ended within {seconds:g} s: measure for longer")
    latencies = [latency for _, latency in window[1:]]
    return Loop(len(latencies) / (window[-1][0] - window[0][0]) * 1e9, statistics.fmean(latencies) / 1e6)
