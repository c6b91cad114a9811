"""`WritingHalf`, the half of an HTTP/1.1 connection that exchanges write their answers to."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.reservation import ConnectionShare, Reservation
from stoker.server.net.http1.port import HttpPort
from stoker.server.net.http1.response import Piece
from stoker.server.net.http1.unflushed_responses import UnflushedResponses


class WritingHalf(asyncio.BufferedProtocol):
    """A `Connection`, as exchanges see it; the reading half builds on it. Confined to: the event loop.

    Attributes:
        transport: What is written to, once the connection is made.
        flow: Whether reading and writing pause; likewise.
    """

    def __init__(self, port: HttpPort) -> None:
        self._port = port
        self._keep_alive = True
        self._is_stopping = False
        self._is_last = False
        self._share: ConnectionShare | None = None
        self._unflushed: UnflushedResponses | None = None
        self.transport: asyncio.Transport
        self.flow: FlowControl

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self._release_unflushed()
        self.flow.resume_writing()

    @property
    def keep_alive(self) -> bool:
        return self._keep_alive and not self._is_stopping and not self._is_last

    def write_response(self, parts: Sequence[Piece]) -> None:
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)
        self._responded()

    def response_reservation(self, budget: ByteBudget) -> Reservation:
        """What an answer will hold of the budget."""
        return Reservation(budget, self.share(budget))

    def release_when_sent(self, reservation: Reservation) -> None:
        if not self.flow.write_paused:
            reservation.release()
            return
        if self._unflushed is None:
            self._unflushed = UnflushedResponses(reservation.budget, self.transport, self._port)
        self._unflushed.keep(reservation)

    def share(self, budget: ByteBudget) -> ConnectionShare:
        """What the requests and unread answers of the connection hold together."""
        if self._share is None:
            self._share = ConnectionShare(budget)
        return self._share

    def begin_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        port = self._port
        task = port.loop.create_task(work)
        port.tasks.add(task)
        task.add_done_callback(port.tasks.discard)
        return task

    def _responded(self) -> None:
        """The answer to the present request is written."""
        raise NotImplementedError

    def _release_unflushed(self) -> None:
        if self._unflushed is not None:
            self._unflushed.release()
            self._unflushed = None
