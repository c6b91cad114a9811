"""Direct routes, which read a request's bytes from the connection and write its response to it, without ASGI."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from stoker.backends.api.errors import ServingError
from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import Piece


class Exchange(Protocol):
    """The connection's interface to one request and its response. Confined to: the event loop.

    The connection passes the body as it arrives, by `receive` or through `receive_buffer` and `received`, or calls `disconnect` when the
    client is gone. The exchange gives the connection its response once, at any time, also from inside these calls.
    """

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the response was written."""

    @property
    def is_responded(self) -> bool:
        """Whether all of it was."""

    def receive(self, piece: bytes, is_last: bool) -> None:
        """Takes a piece of the body; `is_last` ends it."""

    def receive_buffer(self) -> memoryview | None:
        """The buffer for the next bytes of the body, no longer than they are; None: `receive` takes them."""

    def received(self, size: int, is_last: bool) -> None:
        """Notes that so many bytes were read into `receive_buffer`."""

    def disconnect(self) -> None:
        """Cancels the work: the client is gone, or the connection ends."""

    def fail(self, error: ServingError) -> None:
        """Responds with `error`: the connection cannot take the body."""


class Connection(Protocol):
    """An exchange's interface to the connection."""

    @property
    def keep_alive(self) -> bool:
        """Whether the client may send another request after this one; the response to the last one has `connection: close`."""

    def reservation(self, budget: ByteBudget) -> Reservation:
        """The reservation of the present request; the budget may evict a request that arrives slowly in favour of others."""

    def write_response(self, parts: Sequence[Piece]) -> None:
        """Writes the whole response to the present request."""

    def release_when_sent(self, reservation: Reservation) -> None:
        """Releases the reservation of the response just written once the client has taken it, or is gone."""

    def begin_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts `work` as a task, which the server waits for when it stops."""


class DirectRoute(Protocol):
    """The route of all requests that begin with one particular head; kept as long as the head is cached."""

    def exchange(self, connection: Connection) -> Exchange:
        """A new request."""


class DirectRoutes(Protocol):
    """Finds direct routes."""

    def find(self, head: RequestHead) -> DirectRoute | None:
        """The route of requests with that head; None: the ASGI application."""


class RouteList:
    """The routes of several `DirectRoutes`, the first that fits."""

    def __init__(self, routes: Sequence[DirectRoutes]) -> None:
        self._routes = routes

    def find(self, head: RequestHead) -> DirectRoute | None:
        for each in self._routes:
            route = each.find(head)
            if route is not None:
                return route
        return None
