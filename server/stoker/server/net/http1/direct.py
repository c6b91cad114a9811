"""What the short path is: routes that take a request's bytes from the connection and write its answer to it, no framework between."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import Piece


class Exchange(Protocol):
    """One request and its answer, as the connection sees them. Confined to: the event loop.

    The connection passes the body as it arrives, by `receive` or through `receive_buffer` and `received`, or calls `disconnect` when the
    client is gone. The exchange gives the connection its response once, at any time, also from inside these calls.
    """

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the answer was written."""

    @property
    def is_responded(self) -> bool:
        """Whether all of it was."""

    def receive(self, piece: bytes, is_last: bool) -> None:
        """Takes a piece of the body; `is_last` ends it."""

    def receive_buffer(self) -> memoryview | None:
        """Where the next bytes of the body are to be read into, no longer than what it has left; None: `receive` wants them."""

    def received(self, size: int, is_last: bool) -> None:
        """So many bytes were read into `receive_buffer`."""

    def disconnect(self) -> None:
        """The client is gone, or the connection ends: what is in work is taken back."""


class Connection(Protocol):
    """What an exchange may do with its connection."""

    @property
    def keep_alive(self) -> bool:
        """Whether the client may send another request after this one; an answer to the last one says so."""

    def reservation(self, budget: ByteBudget) -> Reservation:
        """What the present request will hold of the budget; one that arrives slowly may be ended to make room for others."""

    def write_response(self, parts: Sequence[Piece]) -> None:
        """Writes the whole answer to the present request."""

    def release_when_sent(self, reservation: Reservation) -> None:
        """Releases what is held for the answer just written once the client has taken it, or is gone."""

    def begin_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins `work`, which the end of the server waits for."""


class DirectRoute(Protocol):
    """Where requests with one particular head go. Kept as long as the head is, and used for every request that begins with it."""

    def exchange(self, connection: Connection) -> Exchange:
        """A new request."""


class DirectRoutes(Protocol):
    """The routes that take the short path."""

    def find(self, head: RequestHead) -> DirectRoute | None:
        """Where requests with that head go; None: to the framework."""
