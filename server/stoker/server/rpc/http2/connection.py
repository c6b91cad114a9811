"""A connection of the gRPC port: an asyncio protocol around the sans-IO HTTP/2 core.

In one iteration of the event loop, all frames of a read are parsed, the calls that they complete are started, and the responses are written
together. A read that starts very many calls is handled in slices, with other connections served between them. Reading pauses meanwhile, and
also while the peer does not read its responses.
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
from stoker.server.net.receiver import CLOSED
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.http2.call import H2Call
from stoker.server.rpc.http2.connection_calls import ConnectionCalls
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.http2.peer_monitor import PAYLOAD, PeerMonitor
from stoker.server.rpc.http2.rejected_call import RejectedCall
from stoker.server.rpc.http2.responses import ENDING, TOO_SLOW
from stoker.server.rpc.http2.zero_copy_reader import ZeroCopyReader
from stoker.server.rpc.rejection import Rejection

#: Events of one connection that are handled before other connections are served: about 64 calls.
_SLICE: Final = 128
#: Bytes of a read that are parsed at a time, so that a large message that begins in them has its receive buffer before the rest is parsed.
_PIECE_BYTES: Final = 64 * 1024
#: The same while no message is incomplete: one DATA frame of the usual size, and the header block before it.
_FIRST_PIECE_BYTES: Final = 20 * 1024
#: Output up to this size is joined before it is written; larger data is passed to the transport without a copy.
_JOINED_BYTES: Final = 32 * 1024
#: A read of at least this size may have been limited by the buffer (uvloop's: 256,000 bytes, less with TLS), and more bytes may follow in
#: the same loop iteration.
_PARTIAL_READ_BYTES: Final = 192 * 1024
#: Seconds that a client has to acknowledge the PING of a drain; then the final GOAWAY is sent in any case.
_DRAIN_ACK_S: Final = 1.0
_H2: Final = "h2"
_log = logging.getLogger(__name__)


class GrpcProtocol:
    """A streaming protocol, see `net.receiver.Receiver`. Confined to: the event loop.

    Attributes:
        context: The state that all connections of the port share.
        core: The HTTP/2 connection.
        calls: The calls on its streams.
        share: The share of the byte budget that its requests hold together.
        is_reserved: Whether it has a reserved slot, see `ConnectionGate`.
    """

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self.share = ConnectionShare(context.engine.budget)
        self.is_reserved = False
        #: None: no large message has arrived.
        self._zero_copy: ZeroCopyReader | None = None
        self._drains: dict[int, asyncio.Future[None]] = {}
        self._backlog: deque[Event] = deque()
        self._receive_buffer: memoryview | None = None
        self._is_full = False
        self._is_output_noticed = False
        self._is_draining = False
        self._refused_s: float | None = None

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface, but not the class.
        self._transport: asyncio.Transport = cast("asyncio.Transport", transport)
        now_s = self.context.loop.time()
        self._watch = PeerMonitor(self.context.limits, self.context.settings, now_s)
        self.core = ServerConnection(self.context.h2_limits, now_s, self.context.common_blocks)
        self.calls = ConnectionCalls(self.context, self._watch)
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
        # Nothing is sent; this frees partial messages and unsent responses before the next garbage collection.
        self.core.close(ErrorCode.NO_ERROR)
        self.context.leave(self)
        # Nothing may refer to the connection in a cycle: reference counts then free it at once.
        self._transport, self._zero_copy = CLOSED, None

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
        # Responses that were complete at once.
        if not self._backlog:
            self._write()

    def eof_received(self) -> None:
        """RFC 9113, section 9.1: a peer that sends no more gets nothing either; the transport closes."""

    def pause_writing(self) -> None:
        self._is_full = True
        self._read_on_or_not()

    def resume_writing(self) -> None:
        self._is_full = False
        self._read_on_or_not()
        self._write()

    # ---- used by zero-copy reads

    def receive_buffer(self) -> memoryview:
        """The buffer for the next read."""
        receiving = self._receiving
        if not receiving:
            # Probably a large message begins next: what follows its beginning is then read into its own buffer, and not copied.
            return self.context.buffer[:_FIRST_PIECE_BYTES]
        # While several messages arrive, their frames take turns.
        self._receive_buffer = receive_buffer = self.core.receive_buffer(next(iter(receiving)) if len(receiving) == 1 else 0)
        return self.context.buffer if receive_buffer is None else receive_buffer

    def filled(self, count: int) -> None:
        """Handles bytes that were read into `receive_buffer`."""
        now_s = self.context.loop.time()
        self._watch.pings.heard_s = now_s
        receive_buffer, self._receive_buffer = self._receive_buffer, None
        reads = self.context.reads
        # A read ends at the end of its buffer, even if the socket has more bytes.
        most = _PARTIAL_READ_BYTES if self._receiving else _FIRST_PIECE_BYTES
        reads.begin(self, is_whole=receive_buffer is None and count < most)
        try:
            if receive_buffer is not None:
                self._take(self.core.receive_zero_copy(receive_buffer[:count], now_s), now_s)
            else:
                self._take_pieces(self.context.buffer[:count], now_s)
        finally:
            reads.end()
        if not self._receiving and self._zero_copy is not None:
            self._zero_copy.note_small_read()
        if not self._backlog:
            self._write()

    # ---- used by calls

    def read_zero_copy(self) -> None:
        """Switches the transport to zero-copy reads: a large message has its receive buffer."""
        if self._zero_copy is None:
            self._zero_copy = ZeroCopyReader(self)
        self._zero_copy.begin()

    def notice_output(self) -> None:
        """Schedules one write of the core's output in this loop iteration."""
        if not self._is_output_noticed:
            self._is_output_noticed = True
            self.context.loop.call_soon(self._write)

    def streamed(self) -> None:
        """Notes that part of a response was passed to the core: clients that measure the bandwidth ping when they receive data."""
        self._watch.pings.has_sent_data = True
        self.notice_output()

    def send_end(self, stream_id: int, block: bytes) -> None:
        """Ends a response with a header block of trailers."""
        self.core.send_headers(stream_id, block, end_stream=True)

    def has_response_space(self, size_bytes: int) -> bool:
        """Whether the byte budget has space for a response."""
        return self.context.engine.budget.has_response_space(size_bytes)

    def hold_unflushed(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> None:
        """Counts the unsent bytes of a complete response against the byte budget; resets the stream if the budget is exhausted."""
        if not self._unflushed.keep(self, stream_id, size_bytes, is_unary=is_unary):
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            self.core.reset_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM)

    def responded(self, call: H2Call | RejectedCall) -> None:
        """Forgets a call whose response was given to the core."""
        stream_id = call.stream_id
        if self._open.pop(stream_id, None) is not None:
            self.context.calls -= 1
        self._watch.pings.has_sent_data = True
        if not call.has_ended:
            # RFC 9113, section 8.1: the response is complete, and the rest of the request is not needed.
            self.core.abandon_request(stream_id)
        if self._is_output_noticed:
            return
        if self._open:
            # Other calls probably complete in this loop iteration too; one write then sends all responses.
            self.notice_output()
        else:
            # There is no other call: writing now saves a loop iteration, 4 us of each call that is alone on its connection.
            self._write()

    async def drained(self, stream_id: int) -> None:
        """Returns when all data that waits on the stream has been sent."""
        waiter = self._drains[stream_id] = self.context.loop.create_future()
        try:
            await waiter
        finally:
            self._drains.pop(stream_id, None)

    # ---- used by the server

    @property
    def taken_bytes(self) -> int:
        """Bytes that the client has received of all that was written."""
        return self._watch.written_bytes - self._transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport that the connection writes to."""
        return self._transport

    def sweep(self, now_s: float) -> None:
        """Enforces timeouts at `now_s` of the loop's clock: ends slow handshakes, requests and readers, pings a silent peer, and drains by
        age.
        """
        # A read without data, such as half a TLS record, leaves the buffer set; it would keep a finished call's message in memory.
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
        # A closing connection ends once its client has received the remaining output.
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
        """Drops the connection and its unsent output."""
        self._transport.abort()

    # ---- receiving

    def _take_pieces(self, data: memoryview, now_s: float) -> None:
        """Parses a read in pieces, so that a large message that begins in it soon has its receive buffer.

        The transport overwrites the bytes afterwards.
        """
        size = len(data)
        most = size if size <= _PIECE_BYTES else _PIECE_BYTES if self._receiving else _FIRST_PIECE_BYTES
        at = 0
        while at < size:
            piece = data[at : at + most]
            at += most
            # While a request is incomplete, the bytes mostly continue a message with a receive buffer, and are copied there.
            events = self.core.receive(piece if self._receiving else bytes(piece), now_s)
            self._take(events, now_s)
            # If no other message begins here, all the rest goes into that buffer.
            most = size if self._receiving and all(type(event) is DataWritten for event in events) else _PIECE_BYTES

    def _take(self, events: list[Event], now_s: float) -> None:
        """Handles the received events, or appends them to the backlog."""
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
            self.calls.follow(self, events, is_last=True)

    def _process_pending(self) -> None:
        """Handles one slice of the backlog, and schedules the next one behind other connections."""
        backlog = self._backlog
        self._is_output_noticed = True
        try:
            events = [backlog.popleft() for _ in range(min(_SLICE, len(backlog)))]
            self.calls.follow(self, events, is_last=not backlog)
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
        """Writes the output to the transport: all of it if it is small, else in parts, with other connections served between them."""
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
