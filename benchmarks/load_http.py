"""A lean HTTP/1.1 client: keep-alive connections, one request's bytes sent again and again, answers parsed for status and length only."""

import asyncio
import socket
from collections import deque
from functools import partial
from typing import cast

from benchmarks.loops import Done

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


class HttpSender:
    """Sends `request` over as many connections as there are requests in flight, up to `connections`.

    Attributes:
        answer: The last answer, head and body.
    """

    def __init__(self, host: str, port: int, request: bytes, connections: int) -> None:
        self._address = (host, port)
        self._request = request
        self._wanted = connections
        self._idle: list[_Connection] = []
        self._queued: deque[Done] = deque()
        self.answer = b""

    async def connect(self) -> None:
        """Opens all connections.

        Raises:
            OSError: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        for _ in range(self._wanted):
            _, connection = await loop.create_connection(partial(_Connection, self), *self._address)
            self._idle.append(connection)

    def send(self, done: Done) -> None:
        """Sends on an idle connection, or as soon as one is."""
        if self._idle:
            self._idle.pop().send(self._request, done)
        else:
            self._queued.append(done)

    def close(self) -> None:
        """Closes the idle connections; busy ones are closed by their answer."""
        for connection in self._idle:
            connection.close()

    def finished(self, connection: "_Connection", answer: bytes) -> None:
        """`connection` is free again."""
        self.answer = answer
        if self._queued:
            connection.send(self._request, self._queued.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: "_Connection") -> None:
        """`connection` is gone, and with it, if it was the last, everything that waits for one."""
        if connection in self._idle:
            self._idle.remove(connection)
        self._wanted -= 1
        while self._wanted == 0 and self._queued:
            self._queued.popleft()(False)


class _Connection(asyncio.Protocol):
    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._done: Done | None = None
        self._parts: list[bytes] = []
        self._missing = 0  # bytes of the body still to come; 0 while the head is incomplete
        self._is_good = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def send(self, request: bytes, done: Done) -> None:
        assert self._transport is not None
        self._done = done
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        if self._missing:
            self._missing -= len(data)
        else:
            received = data if len(self._parts) == 1 else b"".join(self._parts)
            end = received.find(_HEAD_END)
            if end < 0:
                return
            head = received[:end].lower()
            at = head.find(_LENGTH)
            if at < 0:
                raise ValueError(f"an answer without Content-Length cannot be measured: {head[:200]!r}")
            length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
            self._is_good = head[9:12] == b"200"
            self._parts = [received]
            self._missing = end + len(_HEAD_END) + length - len(received)
        if self._missing <= 0:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        done, self._done = self._done, None
        if done is not None:
            done(False)
        self._sender.lost(self)

    def _finish(self) -> None:
        answer = b"".join(self._parts)
        self._parts = []
        self._missing = 0
        done, self._done = self._done, None
        if done is None:
            raise ValueError("the server answered a request that was not sent")
        self._sender.finished(self, answer)
        done(self._is_good)
