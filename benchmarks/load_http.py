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
    """Sends `request` over as many connections as there are requests in flight: `ready` of them opened before, more as needed up to `most`.

    Attributes:
        reply: The last answer, head and body.
    """

    def __init__(self, host: str, port: int, request: bytes, *, ready: int, most: int) -> None:
        self._address = (host, port)
        self._request = request
        self._ready = ready
        self._most = most
        self._open = 0
        self._idle: list[_Connection] = []
        self._queued: deque[Done] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self.reply = b""

    async def connect(self) -> None:
        """Opens the connections that are to be ready.

        Raises:
            OSError: the server cannot be reached.
        """
        for _ in range(self._ready):
            self._open += 1
            self.freed(await self._connection())

    def send(self, done: Done) -> None:
        """Sends on the connection that was idle last, or as soon as there is one."""
        if self._idle:
            self._idle.pop().send(self._request, done)
        else:
            self._queued.append(done)
            self._open_another()

    def close(self) -> None:
        """Closes the idle connections; none is busy once every request is answered."""
        for connection in self._idle:
            connection.close()

    def freed(self, connection: "_Connection") -> None:
        """`connection` can take a request."""
        if self._queued:
            connection.send(self._request, self._queued.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: "_Connection") -> None:
        """`connection` is gone; servers close those that stay idle."""
        self._open -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        if self._queued:
            self._open_another()

    def _open_another(self) -> None:
        if self._open < self._most:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._connect_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect_one(self) -> None:
        try:
            connection = await self._connection()
        except OSError:
            self._open -= 1
            failed, self._queued = self._queued, deque()
            for done in failed:
                done(False)
        else:
            self.freed(connection)

    async def _connection(self) -> "_Connection":
        _, connection = await asyncio.get_running_loop().create_connection(partial(_Connection, self), *self._address)
        return connection


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
        if self._done is None:  # unasked: the server says that it closes a connection for being idle
            self.close()
            return
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
        reply = b"".join(self._parts)
        self._parts = []
        self._missing = 0
        done, self._done = self._done, None
        assert done is not None
        self._sender.reply = reply
        self._sender.freed(self)
        done(self._is_good)
