"""Backpressure of clients that read slowly: the unread bytes of written responses, and the time since a client last read."""

import asyncio

from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.core.limits import Limits
from stoker.server.net.progress import Progress
from stoker.server.net.receiver import CLOSED


class FlowControl:
    """Pauses reading from a transport, and reports that the transport paused writing. Confined to: the event loop.

    Attributes:
        read_paused: Whether the connection reads nothing.
        write_paused: Whether the transport holds more than its high watermark.
    """

    __slots__ = ("_transport", "_writable", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport = transport
        self.read_paused = False
        self.write_paused = False
        self._writable: asyncio.Event | None = None

    async def drain(self) -> None:
        """Waits until writing is not paused, or the connection is lost."""
        if self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True

    def end(self) -> None:
        """The connection is lost: releases the transport and the waiters of `drain`."""
        self._transport = CLOSED
        self.resume_writing()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None


class UnsentWatch:
    """Detects a client that does not read. It polls the size of the write buffer, so that a fast request costs nothing."""

    __slots__ = ("_since_s", "_size_bytes")

    def __init__(self) -> None:
        self._size_bytes = 0
        self._since_s = 0.0

    def is_stuck(self, size_bytes: int, now_s: float, most_s: float) -> bool:
        """Whether the same `size_bytes` have waited for more than `most_s` seconds."""
        if size_bytes != self._size_bytes:
            self._size_bytes, self._since_s = size_bytes, now_s
            return False
        return bool(size_bytes) and now_s - self._since_s > most_s


class UnflushedResponses:
    """Responses of one connection that count against the byte budget until the client takes them. Confined to: the event loop.

    The byte budget may evict them as it evicts an `Upload`: that drops the connection.
    """

    def __init__(self, budget: ByteBudget, transport: asyncio.Transport, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._transport = transport
        self._loop = loop
        self._reservations: list[Reservation] = []
        self._left_bytes = 0
        self._progress = Progress(limits, loop.time())

    def __len__(self) -> int:
        """Number of responses."""
        return len(self._reservations)

    def keep(self, reservation: Reservation) -> None:
        """Adds the reservation of one more response."""
        self.look()
        self._reservations.append(reservation)
        self._left_bytes = self._transport.get_write_buffer_size()
        self._budget.watch(self)

    def release(self) -> None:
        """Releases all reservations: the client has received the responses or disconnected."""
        self._budget.unwatch(self)
        for reservation in self._reservations:
            reservation.release()
        self._reservations.clear()

    def look(self) -> None:
        """Notes how many bytes the client has taken; called by each sweep."""
        left_bytes = self._transport.get_write_buffer_size()
        self._progress.note(max(0, self._left_bytes - left_bytes), self._loop.time())
        self._left_bytes = left_bytes

    def held_bytes(self) -> int:
        return sum(reservation.held_bytes for reservation in self._reservations)

    def rate(self) -> float | None:
        self.look()
        return self._progress.rate(self._loop.time())

    def evict(self) -> None:
        self.release()
        self._transport.abort()
