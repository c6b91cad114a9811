"""`BodyAdmission`: a large HTTP body waits until all of it fits the byte budget. The connection reads nothing of it meanwhile."""

import asyncio
from typing import Final, Protocol

from stoker.backends.api.errors import Overloaded
from stoker.server.core.admission import Outcome, Ticket
from stoker.server.core.byte_budget import Reservation
from stoker.server.net.http1.direct import Exchange

#: Bodies up to this size never wait.
SMALL_BYTES: Final = 64 * 1024
#: A body up to this size reserves all its bytes when its head has arrived, a larger one when this share of it has, or as much: a client
#: must send something before others wait for it.
_ADMITTED_AT_ONCE_BYTES: Final = 1 << 20
_ADMITTED_SHARE: Final = 16


class WaitingConnection(Protocol):
    """The connection's interface for the body that it waits for."""

    def pause_body(self) -> None:
        """The body waits: nothing may be read."""

    def resume_body(self) -> None:
        """The body may be read. If the request was rejected meanwhile, it is dropped."""


class BodyAdmission:
    """One body. Confined to: the event loop.

    Attributes:
        is_admitted: Whether all bytes of the body are reserved.
    """

    __slots__ = ("_connection", "_exchange", "_loop", "_reservation", "_size_bytes", "_taken_bytes", "_ticket", "_wait_s", "is_admitted")

    def __init__(
        self,
        connection: WaitingConnection,
        exchange: Exchange,
        reservation: Reservation,
        size_bytes: int,
        loop: asyncio.AbstractEventLoop,
        wait_s: float,
    ) -> None:
        """The body of `exchange` has `size_bytes`, and waits at most `wait_s` seconds."""
        self._connection = connection
        self._exchange = exchange
        self._reservation = reservation
        self._size_bytes = size_bytes
        self._loop = loop
        self._wait_s = wait_s
        self._ticket: Ticket | None = None
        #: Bytes that the request has taken before it was admitted.
        self._taken_bytes = 0
        self.is_admitted = False

    def may_take(self, size_bytes: int) -> bool:
        """Whether the request may take the next `size_bytes` of its body; False: it waits, and the connection is called later, or at once
        if too many wait.
        """
        if self.is_admitted:
            return True
        reservation = self._reservation
        if size_bytes + self._taken_bytes < min(self._size_bytes // _ADMITTED_SHARE, _ADMITTED_AT_ONCE_BYTES) and not self._is_short():
            try:
                reservation.take(size_bytes)
            except Overloaded:
                pass  # It waits for space now.
            else:
                reservation.prepaid_bytes += size_bytes
                self._taken_bytes += size_bytes
                return True
        # While it waits it holds nothing: two requests that are half received would wait for each other.
        reservation.release()
        ticket = Ticket(self, self._size_bytes, self._loop.time(), self._wait_s)
        try:
            if reservation.budget.queue.enter(ticket, self._loop.call_soon):
                self._note_admitted()
                return True
        except Overloaded as error:
            self._fail(error)
            return False
        self._ticket = ticket
        self._connection.pause_body()
        return False

    def sweep(self, now_s: float) -> None:
        """Called regularly while the request waits."""
        self._reservation.budget.queue.sweep(now_s)

    def end(self) -> None:
        """The body is no longer waited for."""
        if self._ticket is not None:
            self._reservation.budget.queue.leave(self._ticket)
            self._ticket = None

    # What the queue calls.

    def try_admit(self, size_bytes: int, slower_than: float) -> Outcome:
        return self._reservation.admit(size_bytes, slower_than)

    def admitted(self) -> None:
        if self._ticket is not None:
            self._ticket = None
            self._note_admitted()
            self._connection.resume_body()

    def not_admitted(self, error: Overloaded) -> None:
        if self._ticket is not None:
            self._ticket = None
            self._fail(error)

    def _fail(self, error: Overloaded) -> None:
        self._exchange.fail(error)
        self._connection.resume_body()

    def _is_short(self) -> bool:
        return self._size_bytes <= _ADMITTED_AT_ONCE_BYTES

    def _note_admitted(self) -> None:
        self.is_admitted = True
        self._reservation.prepaid_bytes = self._size_bytes - self._taken_bytes
