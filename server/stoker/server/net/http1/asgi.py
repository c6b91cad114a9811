"""Requests that go to the framework: uvicorn's ASGI cycle, fed by our connection."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.net.http1.head import RequestHead

#: In the scope of a request that came by a connection of ours: the connection's `reservation`.
RESERVATION = "stoker.reservation"
#: Likewise: the connection's `response_reservation`, and its `release_when_sent`.
RESPONSE_RESERVATION, RELEASE_WHEN_SENT = "stoker.response_reservation", "stoker.release_when_sent"
#: Set in the scope of a request whose client is gone, just before its task is cancelled.
CLIENT_GONE = "stoker.client_gone"
_log = logging.getLogger("uvicorn.error")


class AsgiPeer:
    """What every scope says of one connection."""

    __slots__ = ("client", "scheme", "server")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme: Literal["http", "https"] = "https" if is_ssl(transport) else "http"


class AsgiExchange:
    """One request for an ASGI app. Confined to: the event loop. INVARIANT: its task is cancelled when the client leaves."""

    __slots__ = ("_cycle", "_flow", "_scope", "_task")

    def __init__(
        self,
        app: Any,
        head: RequestHead,
        peer: AsgiPeer,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        keep_alive: bool,
        responded: Callable[[], None],
        tasks: "set[asyncio.Task[None]]",
        reservation: Callable[[ByteBudget], Reservation],
        response_reservation: Callable[[ByteBudget], Reservation],
        release_when_sent: Callable[[Reservation], None],
    ) -> None:
        """Starts the app.

        Args:
            app: What answers.
            head: Of the request.
            peer: Of the connection.
            transport: What the app's answer is written to.
            flow: What the app may pause and resume.
            keep_alive: Whether the connection outlives the answer.
            responded: Called once the answer is written.
            tasks: Holds the task as long as it runs.
            reservation: The connection's.
            response_reservation: Likewise.
            release_when_sent: Likewise.
        """
        self._flow = flow
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": peer.server,
            "client": peer.client,
            "scheme": peer.scheme,
            "method": head.method,
            "root_path": "",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": list(head.headers),
            "state": {},
            RESERVATION: reservation,
            RESPONSE_RESERVATION: response_reservation,
            RELEASE_WHEN_SENT: release_when_sent,
        }
        self._scope: dict[str, Any] = scope
        self._cycle = RequestResponseCycle(
            scope=scope,
            transport=transport,
            flow=flow,
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=keep_alive,
            on_response=responded,
        )
        self._task = asyncio.get_running_loop().create_task(self._cycle.run_asgi(app))
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    @property
    def has_begun(self) -> bool:
        return self._cycle.response_started

    @property
    def is_responded(self) -> bool:
        return self._cycle.response_complete

    def receive_buffer(self) -> memoryview | None:
        return None

    def received(self, size: int, is_last: bool) -> None:
        raise AssertionError("an ASGI app's body is not read in place")

    def receive(self, piece: bytes, is_last: bool) -> None:
        cycle = self._cycle
        if cycle.response_complete:
            return
        cycle.body += piece
        if is_last:
            cycle.more_body = False
        elif len(cycle.body) > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        cycle.message_event.set()

    def close_after_response(self) -> None:
        """The answer will say that the connection ends with it, if it has not begun yet."""
        self._cycle.keep_alive = False

    def disconnect(self) -> None:
        if not self._task.done():
            self._cycle.disconnected = True
            self._cycle.message_event.set()
            self._scope[CLIENT_GONE] = True
            self._task.cancel()
