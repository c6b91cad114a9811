"""A connection of the gRPC port: an asyncio protocol around the HTTP/2 core, which knows neither sockets nor time.

One turn of the loop: all frames of a read are parsed, the calls they complete are begun, and the responses are written at once. A read that
begins very many calls is handled in slices, with other connections' turns between them, and nothing more is read meanwhile; nor is
anything read while the peer leaves what is written to it unread.
"""

import asyncio
import logging
import ssl
from collections import deque
from typing import Final, cast

from stoker.server.core.byte_budget import ConnectionShare
from stoker.server.net.connection_gate import IDLE, UNREGISTERED, Idleness, Slot, address_of
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.events import DataWritten, Event
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.http2.call import H2Call, RejectedCall
from stoker.server.rpc.http2.connection_calls import ConnectionCalls
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.http2.peer_monitor import PAYLOAD, PeerMonitor
from stoker.server.rpc.http2.responses import ENDING, TOO_SLOW
from stoker.server.rpc.rejection import Rejection

#: So many reads with no large message on its way, and the connection is called itself again.
_SMALL_READS: Final = 64


class ZeroCopyReader(asyncio.BufferedProtocol):
    """Confined to: the event loop."""

    def __init__(self, connection: "GrpcProtocol") -> None:
        self._connection = connection
        self._is_on = False
        self._others = 0

    def begin(self) -> None:
        """A large message has its place."""
        self._others = 0
        transport = self._connection.transport
        if not self._is_on and not transport.is_closing():
            self._is_on = True
            transport.set_protocol(self)

    def note_small_read(self) -> None:
        """A read was made here, and no large message is on its way now."""
        self._others += 1
        transport = self._connection.transport
        if self._others > _SMALL_READS and self._is_on and not transport.is_closing():
            self._is_on = False
            transport.set_protocol(self._connection)

    # ---- what the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.filled(nbytes)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


#: Events of one connection that are handled before others have their turn: some 64 calls.
_SLICE: Final = 128
#: What is looked at at a time of what was read: a large message that begins in it has its place before the rest is.
_PIECE_BYTES: Final = 64 * 1024
#: Likewise, where no message is on its way: a frame of the size that most clients send, and the header block before it.
_FIRST_PIECE_BYTES: Final = 20 * 1024
#: What is copied into one piece to be written; larger data goes to the transport as it is.
_JOINED_BYTES: Final = 32 * 1024
#: A read of so much may be cut by a buffer (uvloop's: 256,000 bytes, over TLS less their wrapping), with more to come in this turn.
_PARTIAL_READ_BYTES: Final = 192 * 1024
#: How long a client has to acknowledge that the connection is about to end, seconds; then the final GOAWAY is sent all the same.
_DRAIN_ACK_S: Final = 1.0
_H2: Final = "h2"
_log = logging.getLogger(__name__)


class GrpcProtocol(asyncio.Protocol):
    """Confined to: the event loop.

    Attributes:
        context: What it shares with the others.
        core: The HTTP/2 connection.
        calls: What becomes of its streams.
        share: What its requests hold together.
        is_reserved: It has a reserved slot, see `ConnectionGate`.
    """

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self.share = ConnectionShare(context.engine.budget)
        self.is_reserved = False
        self._zero_copy = ZeroCopyReader(self)
        self._drains: dict[int, asyncio.Future[None]] = {}
        self._backlog: deque[Event] = deque()
        self._receive_buffer: memoryview | None = None
        self._is_full = False
        self._is_output_noticed = False
        self._is_draining = False
        self._refused_s: float | None = None

    # ---- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's has the interface but not the class.
        self._transport = cast("asyncio.Transport", transport)
        now_s = self.context.loop.time()
        self._watch = PeerMonitor(self.context.limits, self.context.settings, now_s)
        self.core = ServerConnection(self.context.h2_limits, now_s)
        self.calls = ConnectionCalls(self, self._watch)
        self._open, self._unflushed, self._receiving = self.calls.open, self.calls.unflushed, self.calls.receiving
        tls = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        # RFC 9113, section 3.3: over TLS, a client asks for HTTP/2 by ALPN.
        slot = self.context.admit(self, address_of(transport))
        self.is_reserved = slot is Slot.RESERVED
        if slot is None or (tls is not None and tls.selected_alpn_protocol() != _H2):
            self._transport.abort()
            return
        self._write()

    def connection_lost(self, error: Exception | None) -> None:
        self._backlog.clear()
        self._receive_buffer = None
        self.calls.forget_all()
        # Nothing is sent. But partial messages and unsent responses would stay in memory until the next garbage collection.
        self.core.close(ErrorCode.NO_ERROR)
        self.context.leave(self)

    def data_received(self, data: bytes) -> None:
        now_s = self.context.loop.time()
        self._watch.pings.heard_s = now_s
        reads, size = self.context.reads, len(data)
        reads.begin(self, is_whole=size < _PARTIAL_READ_BYTES)
        try:
            if size <= _PIECE_BYTES:
                self._take(self.core.receive(data, now_s), now_s)
            else:
                self._take_pieces(memoryview(data), now_s)
        finally:
            reads.end()
        # Responses that were ready at once.
        if not self._backlog:
            self._write()

    def pause_writing(self) -> None:
        self._is_full = True
        self._read_on_or_not()

    def resume_writing(self) -> None:
        self._is_full = False
        self._read_on_or_not()
        self._write()

    # ---- what reads in place use

    def receive_buffer(self) -> memoryview:
        """Where the next read goes."""
        self._receive_buffer = receive_buffer = self.core.receive_buffer() if self._receiving else None
        return self.context.buffer if receive_buffer is None else receive_buffer

    def filled(self, count: int) -> None:
        """So much was read to where `receive_buffer` said."""
        now_s = self.context.loop.time()
        self._watch.pings.heard_s = now_s
        receive_buffer, self._receive_buffer = self._receive_buffer, None
        reads = self.context.reads
        # A read into a message's place ends where that ends, whatever else has come.
        reads.begin(self, is_whole=receive_buffer is None and count < _PARTIAL_READ_BYTES)
        try:
            if receive_buffer is not None:
                self._take(self.core.receive_zero_copy(receive_buffer[:count], now_s), now_s)
            else:
                self._take_pieces(self.context.buffer[:count], now_s)
        finally:
            reads.end()
        if not self._receiving:
            self._zero_copy.note_small_read()
        if not self._backlog:
            self._write()

    # ---- what calls use

    def read_zero_copy(self) -> None:
        """A large message has its place: what comes is read to there from now on."""
        self._zero_copy.begin()

    def notice_output(self) -> None:
        """Sees to it that what the core has to send is written, once a turn."""
        if not self._is_output_noticed:
            self._is_output_noticed = True
            self.context.loop.call_soon(self._write)

    def streamed(self) -> None:
        """Notes that part of a response was given to the core: a client that measures the connection pings for what it reads."""
        self._watch.pings.has_sent_data = True
        self.notice_output()

    def send_end(self, stream_id: int, block: bytes) -> None:
        """Ends a response by a header block."""
        self.core.send_headers(stream_id, block, end_stream=True)

    def hold_unflushed(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> None:
        """Notes what of a complete response waits for the client; resets the stream where the budget cannot hold it."""
        if not self._unflushed.keep(stream_id, size_bytes, is_unary=is_unary):
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            self.core.reset_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM)

    def responded(self, call: H2Call | RejectedCall) -> None:
        """Forgets a call whose response was given to the core."""
        stream_id = call.stream_id
        if self._open.pop(stream_id, None) is not None:
            self.context.calls -= 1
        self._watch.pings.has_sent_data = True
        if not call.has_ended:
            # RFC 9113, section 8.1: the response is complete, and the rest of the request is of no use.
            self.core.abandon_request(stream_id)
        if self._is_output_noticed:
            return
        if self._open:
            # Others likely complete in this turn too, and one write sends all responses.
            self.notice_output()
        else:
            # No other call shares it: a turn of the loop less, 4 us of each call that is alone on its connection.
            self._write()

    async def drained(self, stream_id: int) -> None:
        """Returns when what waits on the stream has gone out."""
        waiter = self._drains[stream_id] = self.context.loop.create_future()
        try:
            await waiter
        finally:
            self._drains.pop(stream_id, None)

    # ---- what the server uses

    @property
    def taken_bytes(self) -> int:
        """Bytes that the client has taken of all that was written to it."""
        return self._watch.written_bytes - self._transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport that the connection writes to."""
        return self._transport

    def sweep(self, now_s: float) -> None:
        """Ends a handshake, request or reader that is too slow at `now_s` of the loop's clock; pings a silent peer; drains by age."""
        # A read without data, as of half a TLS record, leaves it: it would keep the memory of a message whose call is over.
        self._receive_buffer = None
        watch, settings = self._watch, self.context.settings
        if watch.is_lost(self.core, now_s):
            self.abort()
            return
        buffered_bytes = self._transport.get_write_buffer_size()
        if watch.is_stuck(buffered_bytes, self._unflushed, now_s):
            if buffered_bytes or not self._open:
                self.abort()
                return
            # A proxy reads the connection, but one of its clients does not take its response: the calls of others go on.
            self._unflushed.evict()
        self._unflushed.look()
        if watch.pings.should_ping(now_s, has_calls=bool(self._open)):
            self.core.ping(PAYLOAD)
            self._write()
        if self._receiving:
            self._take(self.core.report_written(now_s), now_s)
            if not self._backlog:
                self._write()
        for call in self.calls.slow(now_s, is_reading=not (self._is_full or self._backlog)):
            call.reject(TOO_SLOW)
        idle_s = watch.note_streams(self.core, now_s)
        if settings.max_connection_idle_s is not None and idle_s >= settings.max_connection_idle_s:
            self.drain(GoawayReason.IDLE)
        if self._refused_s is not None and now_s - self._refused_s >= settings.max_connection_age_grace_s:
            self.fail_call(ENDING)
            return
        if settings.max_connection_age_s is not None:
            over_age_s = now_s - watch.opened_s - settings.max_connection_age_s
            if over_age_s >= settings.max_connection_age_grace_s:
                self.fail_call(ENDING)
            elif over_age_s >= 0:
                self.drain(GoawayReason.AGE)

    def drain(self, reason: GoawayReason) -> None:
        """Lets calls in work end, takes no new ones, and closes."""
        if not self._is_draining:
            self._is_draining = True
            self.context.engine.note_goaway(reason)
            self.core.drain()
            self.context.loop.call_later(_DRAIN_ACK_S, self._finish_drain)
            self._write()

    def idleness(self) -> Idleness | None:
        # One that closes is gone as soon as its client has taken what is left.
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return None
        if not self.core.is_ready:
            return UNREGISTERED, self._watch.opened_s
        self._watch.note_streams(self.core, self.context.loop.time())
        return None if self.core.open_streams or self._backlog else (IDLE, self._watch.idle_since_s)

    def close_idle(self) -> None:
        self.context.engine.note_goaway(GoawayReason.FULL)
        self.fail_call(ENDING)

    def _finish_drain(self) -> None:
        if not self._transport.is_closing():
            self.core.finish_drain()
            self._write()

    def note_refused(self, reason: GoawayReason) -> None:
        """Notes that the core refuses new streams; the calls in work may go on for `max_connection_age_grace_s`."""
        if self._refused_s is None:
            self._refused_s = self.context.loop.time()
            self.context.engine.note_goaway(reason)
            self.context.loop.call_later(_DRAIN_ACK_S, self._finish_drain)

    def fail_call(self, rejection: Rejection) -> None:
        """Ends all calls by `rejection`, and the connection."""
        for call in list(self._open.values()):
            call.reject(rejection)
        self.core.close(ErrorCode.NO_ERROR)
        self.calls.forget_all()
        self._write()
        self._transport.close()

    def abort(self) -> None:
        """Drops the connection, with whatever is to be written."""
        self._transport.abort()

    # ---- receiving

    def _take_pieces(self, data: memoryview, now_s: float) -> None:
        """Takes what was read, which will be written over, piece by piece, so that a large message that begins in it soon has its place."""
        size = len(data)
        most = size if size <= _PIECE_BYTES else _PIECE_BYTES if self._receiving else _FIRST_PIECE_BYTES
        at = 0
        while at < size:
            piece = data[at : at + most]
            at += most
            # While a request is on its way, mostly more of a message that has its place: it is copied there.
            events = self.core.receive(piece if self._receiving else bytes(piece), now_s)
            self._take(events, now_s)
            # Where no other message begins, all the rest has its place.
            most = size if self._receiving and all(type(event) is DataWritten for event in events) else _PIECE_BYTES

    def _take(self, events: list[Event], now_s: float) -> None:
        """Handles what has been received, or puts it to what waits."""
        if events:
            self._watch.event_s = now_s
        self._is_output_noticed = True
        if self._backlog or len(events) > _SLICE:
            is_first = not self._backlog
            self._backlog += events
            if is_first:
                self._read_on_or_not()
                self._process_pending()
        else:
            self.calls.follow(events, is_last=True)

    def _process_pending(self) -> None:
        """Handles one slice of the backlog; goes on after others have had their turn."""
        backlog = self._backlog
        self._is_output_noticed = True
        try:
            events = [backlog.popleft() for _ in range(min(_SLICE, len(backlog)))]
            self.calls.follow(events, is_last=not backlog)
        except Exception:  # noqa: BLE001 - a defect: without the abort the connection would hang, as nothing reads it now
            _log.exception("a gRPC connection failed unexpectedly")
            self.abort()
            return
        self._write()
        if backlog:
            self.context.loop.call_soon(self._process_pending)
        else:
            self._read_on_or_not()

    def _read_on_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._is_full or self._backlog:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ---- sending

    def _write(self) -> None:
        """Hands what is to be sent to the transport: all of it where that is little, else a part, with others' turns between."""
        self._is_output_noticed = False
        if self._is_full or self._transport.is_closing():
            return
        core = self.core
        pieces = core.data_to_send()
        if pieces:
            size_bytes = sum(map(len, pieces))
            self._watch.written_bytes += size_bytes
            if size_bytes <= _JOINED_BYTES:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)
        if core.is_quiet:
            return
        for stream_id in core.take_drained():
            waiter = self._drains.get(stream_id)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
            self._unflushed.forget(stream_id)
        if core.has_output:
            self.notice_output()
        elif core.is_finished:
            self._transport.close()
