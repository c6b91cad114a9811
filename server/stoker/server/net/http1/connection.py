"""One HTTP/1.1 connection: one request at a time, in order, each by a direct route or through the ASGI application, under limits.

Bytes are read message by message, never beyond the request in work: pipelined requests wait unread, at first here and then in the kernel.
However many requests a client pipelines, it holds the bytes of one read, and each gets its own turn of the event loop.

A connection has no timer. It notes when its present phase began, and `HttpListener` sweeps all connections twice a second, so that the
limits cost a fast request almost nothing.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

from stoker.server.core.byte_budget import EVICTED, ByteBudget, ConnectionShare, Reservation
from stoker.server.net.connection_gate import ENDING, IDLE, RESERVED_TEXT, UNREGISTERED, Idleness, Slot, address_of
from stoker.server.net.http1.admission import SMALL_BYTES, BodyAdmission
from stoker.server.net.http1.asgi import AsgiExchange, AsgiPeer
from stoker.server.net.http1.backpressure import FlowControl, UnflushedResponses, UnsentWatch
from stoker.server.net.http1.body import BodyFrame
from stoker.server.net.http1.direct import DirectRoute, Exchange
from stoker.server.net.http1.disconnect import HalfClosedClient, can_detect_disconnect
from stoker.server.net.http1.head import HeadReader, KnownHead, RequestHead
from stoker.server.net.http1.phase import HttpConnectionStatistics, Phase
from stoker.server.net.http1.port import HttpPort
from stoker.server.net.http1.response import Piece, Rejection
from stoker.server.net.receiver import CLOSED

#: Phases in which the next bytes wait.
_NOT_READING: Final = (Phase.SENDING_RESPONSE, Phase.WAITING, Phase.REJECTED)
#: How long a rejected client may take to hang up.
_LINGER_S: Final = 2.0
#: Bytes that may wait here before reading pauses.
_AHEAD_BYTES: Final = 16 * 1024
#: Bytes of a read in which the head of a large request is expected.
_HEAD_READ_BYTES: Final = 4096


class HttpConnection:
    """One connection: a buffered protocol, see `net.receiver.Receiver`. Confined to: the event loop.

    Attributes:
        transport: Set once the connection is made.
        flow: Whether reading and writing are paused; likewise.
    """

    transport: asyncio.Transport
    flow: FlowControl

    def __init__(self, port: HttpPort) -> None:
        self._port = port
        self._keep_alive = True
        self._is_stopping = False
        self._is_last = False
        self._share: ConnectionShare | None = None
        self._unflushed: UnflushedResponses | None = None
        self._limits = port.limits
        self._phase = Phase.HEAD
        self._since_s = port.loop.time()
        self._heads = HeadReader(port.heads)
        self._exchange: Exchange | None = None
        self._receive_buffer: memoryview | None = None
        #: Whether the last body had its own buffer: the next one probably has, too.
        self._had_receive_buffer = False
        self._body: BodyFrame | None = None
        #: Of a large body.
        self._admission: BodyAdmission | None = None
        self._awaits_continue = False
        #: The client sends no more; and the watch for its departure.
        self._has_ended = False
        self._half_closed: HalfClosedClient | None = None
        self._version = ""
        self._is_reserved = False
        self._reservation: Reservation | None = None
        #: The byte budget that may evict the present request while its body arrives.
        self._budget: ByteBudget | None = None
        #: Bytes read from the socket that wait, from `_at` on.
        self._ahead = b""
        self._at = 0
        self._is_turn_due = False
        self._unsent = UnsentWatch()
        self._peer: AsgiPeer | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface, but not the class.
        transport = cast("asyncio.Transport", transport)
        port = self._port
        port.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        slot = port.gate.enter(self, address_of(transport), port.loop.time())
        self._is_reserved = slot is Slot.RESERVED
        if slot is None:
            # Closed at once, without waiting for the client's end: many refused connections must not hold a file each.
            self._phase = Phase.REJECTED
            text = "the server holds as many connections as it may: try again"
            transport.write(Rejection(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=1).to_bytes())
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.discard(self)
        self._end_watch()
        self._phase = Phase.REJECTED
        self._end_exchange()
        self._end_body()
        self._ahead = b""
        self._release_unflushed()
        self.flow.end()
        if exc is None:
            self.transport.close()
        self.transport = CLOSED

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self._release_unflushed()
        self.flow.resume_writing()
        self._schedule_turn()

    def eof_received(self) -> bool:
        """The client sends no more: it gets the responses to its requests, unless it is gone; without requests the transport closes."""
        if self._has_ended:
            return True
        if not (self._is_responding() or (self._ahead and self._phase is not Phase.REJECTED)) or not can_detect_disconnect(
            self.transport, self._version
        ):
            return False
        self._has_ended = True
        port = self._port
        self._half_closed = HalfClosedClient(self.transport, port.disconnects, port.loop, self._may_probe)
        if self._exchange is not None and not self._ahead:
            self._is_last = True
        return True

    def _may_probe(self) -> bool:
        return self._exchange is None or not self._exchange.has_begun

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._receive_buffer is not None:
            return self._receive_buffer
        if self._had_receive_buffer and self._phase is not Phase.BODY:
            # What follows the head is then read into the buffer of the body, and not copied.
            return self._port.buffer[:_HEAD_READ_BYTES]
        return self._port.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._receive_buffer is not None:
            self._take_zero_copy(nbytes)
            return
        phase = self._phase
        if phase is Phase.REJECTED:
            return
        # Copied here, while the CPU cache has it: the next connection reads into the same buffer.
        data = bytes(self._port.buffer[:nbytes])
        if phase is Phase.SENDING_RESPONSE or phase is Phase.WAITING or self._ahead or (phase is not Phase.BODY and self.flow.write_paused):
            self._ahead = self._ahead[self._at :] + data
            self._at = 0
            if len(self._ahead) > _AHEAD_BYTES:
                self.flow.pause_reading()
        else:
            self._take(data, 0)

    # What the listener calls.

    def sweep(self, now_s: float) -> None:
        """Ends the connection if its client is slower than the limits allow."""
        limits, transport, phase = self._limits, self.transport, self._phase
        if self._unsent.is_stuck(transport.get_write_buffer_size(), now_s, limits.write_idle_timeout_s):
            transport.abort()
            return
        if self._unflushed is not None:
            self._unflushed.look()
        if transport.is_closing():
            return
        waited_s = now_s - self._since_s
        if phase is Phase.REJECTED:
            if waited_s > _LINGER_S:
                transport.abort()
        elif phase is Phase.IDLE:
            if waited_s > limits.keep_alive_timeout_s:
                transport.close()
        elif phase is Phase.HEAD:
            if waited_s > limits.header_timeout_s:
                self._reject(Rejection(HTTPStatus.REQUEST_TIMEOUT, f"no complete header within {limits.header_timeout_s:g} s"))
        elif phase is Phase.WAITING and self._admission is not None:
            self._admission.sweep(now_s)
        elif phase is Phase.BODY and self._body is not None:
            if self.flow.read_paused:
                self._body.progress.pause(now_s)
            rejection = self._body.slowness(now_s)
            if rejection is not None:
                self._reject(rejection)

    def _is_responding(self) -> bool:
        return self._phase is Phase.SENDING_RESPONSE

    def shutdown(self) -> None:
        """Ends the connection now if no request is in work on it, else with the response."""
        self._is_stopping = True
        if self._phase is Phase.REJECTED or not self.is_in_work:
            self.close_idle()

    def idleness(self) -> Idleness | None:
        if self._phase is Phase.REJECTED:
            return ENDING, self._since_s
        # A closing connection ends once its client has received the last response.
        if self._ahead or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        if self._phase is Phase.IDLE:
            return IDLE, self._since_s
        return (UNREGISTERED, self._since_s) if self._phase is Phase.HEAD else None

    def close_idle(self) -> None:
        if self._phase is Phase.REJECTED:
            self.transport.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def statistics(self) -> HttpConnectionStatistics:
        """The sizes of what the connection holds now, for tests and diagnosis."""
        unflushed = 0 if self._unflushed is None else len(self._unflushed)
        return HttpConnectionStatistics(len(self._ahead) - self._at, self._has_ended, unflushed)

    @property
    def is_in_work(self) -> bool:
        """Whether a request of this connection waits for its response."""
        return self._exchange is not None and not self._exchange.is_responded

    # What the byte budget calls: while a body arrives, the connection is an `Upload`.

    def reservation(self, budget: ByteBudget) -> Reservation:
        made = Reservation(budget, self._share or self.share(budget), self)
        if self._exchange is None or not self._exchange.is_responded:
            self._reservation = made
            if self._body is not None:
                self._watch(budget)
        return made

    def held_bytes(self) -> int:
        return 0 if self._reservation is None else self._reservation.held_bytes

    def rate(self) -> float | None:
        return None if self._body is None else self._body.progress.rate(self._port.loop.time())

    def evict(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
        self._reject(Rejection(HTTPStatus.SERVICE_UNAVAILABLE, EVICTED, retry_after_s=1))

    def _watch(self, budget: ByteBudget) -> None:
        self._budget = budget
        budget.watch(self)

    def _end_body(self) -> None:
        """Notes that the body has arrived, or that the connection no longer waits for it."""
        self._receive_buffer = self._body = None
        if self._admission is not None:
            self._admission.end()
        self._admission = None
        if self._budget is not None:
            self._budget.unwatch(self)
            self._budget = None

    # What a request's exchange calls: the connection is its `AsgiConnection`.

    @property
    def keep_alive(self) -> bool:
        return self._keep_alive and not self._is_stopping and not self._is_last

    def write_response(self, parts: Sequence[Piece]) -> None:
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)
        if self._phase is Phase.SENDING_RESPONSE:  # as in `response_written`, without its call
            self._await_next()
        else:
            self.response_written()

    def response_reservation(self, budget: ByteBudget) -> Reservation:
        """The reservation of the response."""
        return Reservation(budget, self.share(budget))

    def release_when_sent(self, reservation: Reservation) -> None:
        if not self.flow.write_paused:
            reservation.release()
            return
        if self._unflushed is None:
            self._unflushed = UnflushedResponses(reservation.budget, self.transport, self._limits, self._port.loop)
        self._unflushed.keep(reservation)

    def share(self, budget: ByteBudget) -> ConnectionShare:
        """The share of the budget that the requests and unflushed responses of the connection hold together."""
        if self._share is None:
            self._share = ConnectionShare(budget)
        return self._share

    def begin_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        port = self._port
        task = port.loop.create_task(work)
        port.tasks.add(task)
        task.add_done_callback(port.tasks.discard)
        return task

    def end_keep_alive(self) -> None:
        self._keep_alive = False

    # Reading.

    def _take(self, data: bytes, at: int) -> None:
        """Reads `data` from `at`: the remainder of the present message, or the next one, but never two. Further bytes wait."""
        try:
            if self._phase is not Phase.BODY:
                known, at = self._heads.take(data, at)
                if known is not None:
                    at = self._begin(known, data, at)
                elif self._phase is Phase.IDLE:
                    # Part of a head. Blank lines begin no message, and do not keep a connection alive.
                    self._phase = Phase.HEAD
                    self._since_s = self._port.loop.time()
            if self._phase is Phase.BODY and at < len(data):
                at = self._take_body(data, at)
        except Rejection as rejection:
            self._reject(rejection)
            return
        if at < len(data):
            self._ahead, self._at = data, at
            if len(data) - at > _AHEAD_BYTES:
                self.flow.pause_reading()
            self._schedule_turn()

    def _begin(self, known: KnownHead[DirectRoute], data: bytes, at: int) -> int:
        """Begins the request whose head ends at `at`; returns the end of its body if that has arrived completely, else `at`."""
        head, route = known.head, known.route
        length = head.length
        self._keep_alive = head.keep_alive
        self._version = head.version
        self._is_last = self._has_ended and at + (length or 0) >= len(data)
        if self._is_reserved:
            if not self._port.is_reserved(head.path):
                raise Rejection(HTTPStatus.SERVICE_UNAVAILABLE, RESERVED_TEXT, retry_after_s=1)
            self._keep_alive = False
        exchange: Exchange
        if route is not None:
            exchange = self._exchange = route.exchange(self)
            if length is not None and length <= len(data) - at:
                # The usual case: the whole request in one read.
                self._had_receive_buffer = False
                self._phase = Phase.SENDING_RESPONSE
                exchange.receive(data[at : at + length], True)
                return at + length
            if head.expects_continue and at == len(data):
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            exchange = self._exchange = self._asgi_exchange(head)
        if length == 0:
            self._phase = Phase.SENDING_RESPONSE
            exchange.receive(b"", True)
            return at
        self._phase = Phase.BODY
        self._body = BodyFrame(length, self._limits, self._port.loop.time())
        if self._reservation is not None:
            self._watch(self._reservation.budget)
        self._awaits_continue = route is None and head.expects_continue
        if route is not None and self._reservation is not None and length is not None and length > SMALL_BYTES:
            self._admission = BodyAdmission(self, exchange, self._reservation, length, self._port.loop, self._limits.admission_wait_s)
        if at == len(data):
            self._begin_buffer(exchange)
        return at

    def _asgi_exchange(self, head: RequestHead) -> AsgiExchange:
        port = self._port
        if self._peer is None:
            self._peer = AsgiPeer(self.transport)
        return AsgiExchange(port.app, head, self._peer, self)

    def _take_body(self, data: bytes, at: int) -> int:
        """Passes the body bytes of `data` from `at` on to the request; returns where it stopped."""
        body, exchange = self._body, self._exchange
        assert body is not None
        assert exchange is not None
        if self._admission is not None and not self._admission.may_take(len(data) - at) and self._phase is Phase.WAITING:
            return at
        receive_buffer = exchange.receive_buffer()
        if receive_buffer is not None:
            self._had_receive_buffer = True
            size = body.most(len(data) - at)
            receive_buffer[:size] = memoryview(data)[at : at + size]
            self._take_zero_copy(size)
            return at + size
        piece, at = body.take(data, at, self._port.loop.time())
        is_last = self._note_body(exchange, body)
        if piece or is_last:
            exchange.receive(piece, is_last)
        self._after_body_part(exchange, is_last)
        return at

    def pause_body(self) -> None:
        """See `WaitingConnection`."""
        self._phase = Phase.WAITING
        self.flow.pause_reading()

    def resume_body(self) -> None:
        """See `WaitingConnection`."""
        self._admission, self._phase = None, Phase.BODY
        if self._body is not None:
            self._body.progress.pause(self._port.loop.time())
        if self._ahead:
            self._schedule_turn()
        elif self._exchange is not None:
            self._begin_buffer(self._exchange)
            self.flow.resume_reading()

    def _begin_buffer(self, exchange: Exchange) -> None:
        """Reads the body into its own buffer from now on; a large one only once it is admitted."""
        if self._admission is None or (self._admission.may_take(0) and self._admission.is_admitted):
            self._receive_buffer = exchange.receive_buffer()
            self._had_receive_buffer = self._receive_buffer is not None

    def _take_zero_copy(self, size: int) -> None:
        """Notes that more bytes of the body are in the request's receive buffer."""
        body, exchange = self._body, self._exchange
        assert body is not None
        assert exchange is not None
        body.note(size, self._port.loop.time())
        is_last = self._note_body(exchange, body)
        exchange.received(size, is_last)
        self._after_body_part(exchange, is_last)

    def _note_body(self, exchange: Exchange, body: BodyFrame) -> bool:
        """Notes that a part of the body has arrived; returns whether it was the last."""
        if exchange.is_responded and body.size_bytes > self._limits.http_body_bytes:
            # The response came before the body, and the body exceeds the limit that a reader would have applied.
            raise Rejection(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")
        if body.is_complete:
            # Before the request gets it: the response may follow at once.
            self._phase = Phase.SENDING_RESPONSE
            self._end_body()
        return body.is_complete

    def _after_body_part(self, exchange: Exchange, is_last: bool) -> None:
        may_buffer = not is_last and (self._admission is None or self._admission.is_admitted)
        self._receive_buffer = exchange.receive_buffer() if may_buffer else None
        if is_last and exchange is self._exchange and exchange.is_responded:
            # The response was written before the end of the body.
            self._await_next()

    # After a response.

    def response_written(self) -> None:
        """Continues after the response to the current request was written."""
        if self._phase is Phase.SENDING_RESPONSE:
            self._await_next()
        elif self._phase is Phase.BODY and self._body is not None:
            if self._awaits_continue and not self._body.size_bytes:
                # The next bytes may be the body, or the next request of a client that took the response for a rejection of the body.
                self._exchange = None
                self._end_server_side()
                return
            # The remainder of the body is read and dropped first, so that the client gets the response and not a reset.
            self._receive_buffer = None
            self.flow.resume_reading()

    def _await_next(self) -> None:
        self._exchange = self._reservation = None
        if self._is_stopping or self._is_last or not self._keep_alive or (self._has_ended and not self._ahead):
            self._close()
            return
        self._phase = Phase.IDLE
        self._since_s = self._port.loop.time()
        if self._ahead:
            self._schedule_turn()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def _schedule_turn(self) -> None:
        if self._ahead and not self._is_turn_due and self._phase not in _NOT_READING:
            self._is_turn_due = True
            self._port.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Reads the next pipelined message, once the client has read the responses to earlier ones."""
        self._is_turn_due = False
        if not self._ahead or self._phase in _NOT_READING or self.flow.write_paused:
            return
        data, at = self._ahead, self._at
        self._ahead, self._at = b"", 0
        self._take(data, at)
        if not self._ahead:
            if self._has_ended and not self._is_responding():
                # The data is a part of a request, and its remainder will not arrive.
                self._close()
                return
            self.flow.resume_reading()

    def _close(self) -> None:
        """Closes the connection when all is sent."""
        self._end_watch()
        self.transport.close()

    def _end_watch(self) -> None:
        if self._half_closed is not None:
            self._half_closed.end()
            self._half_closed = None

    # The end.

    def _release_unflushed(self) -> None:
        if self._unflushed is not None:
            self._unflushed.release()
            self._unflushed = None

    def _reject(self, rejection: Rejection) -> None:
        """Responds with `rejection`, unless a response to the present request has begun, and ends the server's side."""
        if self._phase is Phase.REJECTED:
            return
        may_respond = self._exchange is None or not self._exchange.has_begun
        self._end_exchange()
        if may_respond:
            self.transport.write(rejection.to_bytes())
        self._end_server_side()

    def _end_server_side(self) -> None:
        """Sends nothing more, and drops all bytes until the client has ended its side.

        A close now, with bytes unread, would reset the connection, and the client might lose the last response.
        """
        self._phase = Phase.REJECTED
        self._since_s = self._port.loop.time()
        self._end_body()
        self._ahead = b""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def _end_exchange(self) -> None:
        exchange, self._exchange, self._reservation = self._exchange, None, None
        if exchange is not None and not exchange.is_responded:
            exchange.disconnect()
