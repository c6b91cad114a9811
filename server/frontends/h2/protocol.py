"""A connection of the gRPC port: `asyncio.Protocol` around the HTTP/2 core, which knows neither sockets nor time.

One turn of the loop: all frames of a read are parsed, the calls they complete are begun, and whatever was answered is written at once.
A read that begins very many calls is worked off in slices, with other connections' turns between them, and nothing more is read meanwhile.
"""

import asyncio
import ssl
from collections import deque
from typing import Final, cast

from server.frontends.h2.answer_blocks import plain_block, refusal_block
from server.frontends.h2.call import H2Call
from server.frontends.h2.connection import ServerConnection
from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import (
    ConnectionEnded,
    DataReceived,
    Event,
    Headers,
    HeadersTooLarge,
    PingReceived,
    RequestStarted,
    StreamReset,
    TrailersReceived,
)
from server.frontends.h2.front_state import FrontState
from server.frontends.h2.ping_rules import PAYLOAD, PingRules
from server.frontends.h2.refused_call import RefusedCall
from server.frontends.h2.streamed_call import StreamedCall
from server.frontends.h2.unary_call import UnaryCall
from server.frontends.rpc.method import Kind
from server.frontends.rpc.refusal import CallFault, Refusal
from server.frontends.rpc.request_head import NotGrpc, RequestHead, read_head

#: Events of one connection that are handled before others have their turn: some 64 calls.
_SLICE: Final = 128
_KEPT_HEADS: Final = 128
#: What is copied into one piece to be written; larger data goes to the transport as it is.
_JOINED_BYTES: Final = 32 * 1024
#: How long a client has to acknowledge that the connection is about to end, seconds; one that does not answers to the second GOAWAY.
_DRAIN_ACK_S: Final = 1.0
_DEADLINE_EXCEEDED: Final = 4
_RESOURCE_EXHAUSTED: Final = 8
_TOO_MANY_CALLS: Final = Refusal(_RESOURCE_EXHAUSTED, "the server has as many calls in work as it may: try again later")
_SHUTTING_DOWN: Final = Refusal(14, "the server is shutting down")
_H2: Final = "h2"


class GrpcProtocol(asyncio.Protocol):
    """Confined to: the event loop.

    Attributes:
        front: What it shares with the others.
        core: The HTTP/2 connection.
        receiving: Unary calls whose request is not complete, by stream.
    """

    def __init__(self, front: FrontState) -> None:
        self.front = front
        self.receiving: dict[int, UnaryCall] = {}
        self._calls: dict[int, H2Call | RefusedCall] = {}
        self._heads: dict[int, tuple[Headers, RequestHead]] = {}
        self._backlog: deque[Event] = deque()
        self._drains: dict[int, asyncio.Future[None]] = {}
        #: By stream, bytes of answered calls that the client does not take; the budget of bytes in flight counts them.
        self._unread: dict[int, int] = {}
        self._unread_bytes = 0
        #: Answered streams to be reset once their answer is out, because the client goes on sending.
        self._unfinished: set[int] = set()
        self._is_paused = False
        self._is_output_noticed = False
        self._is_draining = False
        #: When the client last took something, while it has not taken all.
        self._stuck_s: float | None = None
        self._buffered_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened_s = now_s = self.front.loop.time()
        self.core = ServerConnection(self.front.h2_limits, now_s)
        self._pings = PingRules(self.front.settings, now_s)
        tls = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        if not self.front.admit(self) or (tls is not None and tls.selected_alpn_protocol() not in (_H2, None)):
            self._transport.abort()
            return
        self._write()

    def connection_lost(self, error: Exception | None) -> None:
        self._backlog.clear()
        self._end_calls()
        self.front.leave(self)

    def data_received(self, data: bytes) -> None:
        now_s = self.front.loop.time()
        self._pings.heard_s = now_s
        events = self.core.receive(data, now_s)
        if self._backlog:
            self._backlog += events
            return
        self._is_output_noticed = True
        if len(events) > _SLICE:
            self._backlog += events
            self._transport.pause_reading()
            self._work_off()
        else:
            self._handle(events)
            self._write()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def notice_output(self) -> None:
        """Sees to it that what the core has to send is written, once a turn."""
        if not self._is_output_noticed:
            self._is_output_noticed = True
            self.front.loop.call_soon(self._write)

    def answered(self, call: H2Call | RefusedCall) -> None:
        """Forgets a call whose answer was given to the core."""
        stream_id = call.stream_id
        if self._calls.pop(stream_id, None) is not None:
            self.front.calls -= 1
        self._pings.has_sent_data = True
        if not call.has_ended:
            self._reset_unfinished(stream_id)
        self.notice_output()

    def send_end(self, stream_id: int, block: bytes) -> None:
        """Ends an answer by a header block."""
        self.core.send_headers(stream_id, block, end_stream=True)

    def leave_unread(self, stream_id: int, size_bytes: int) -> None:
        """Notes what of an answered call waits for the client; the answer is given up where there is no room to keep it."""
        if not self.front.engine.reserve(size_bytes):
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            self.core.reset_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            return
        self._unread[stream_id] = size_bytes
        self._unread_bytes += size_bytes

    async def drained(self, stream_id: int) -> None:
        """Returns when what waits on the stream has gone out."""
        waiter = self._drains[stream_id] = self.front.loop.create_future()
        try:
            await waiter
        finally:
            self._drains.pop(stream_id, None)

    def drain(self) -> None:
        """Lets calls in work end, takes no new ones, and closes."""
        if self._is_draining:
            return
        self._is_draining = True
        self.core.drain()
        self.front.loop.call_later(_DRAIN_ACK_S, self._finish_drain)
        self._write()

    def cut_off(self) -> None:
        """Ends all calls and the connection."""
        for call in list(self._calls.values()):
            call.refuse(_SHUTTING_DOWN)
        self.core.close(ErrorCode.NO_ERROR)
        self._end_calls()
        self._write()
        self._transport.close()

    def abort(self) -> None:
        """Drops the connection, with whatever is to be written."""
        self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """Ends what is too slow at `now_s` of the loop's clock: a handshake, a request, a reader; pings who is silent."""
        limits, settings = self.front.limits, self.front.settings
        if not self.core.is_ready and now_s - self._opened_s > limits.grpc_handshake_timeout_s:
            self.abort()
            return
        if self._is_stuck(now_s) or self._pings.is_dead(now_s):
            self.abort()
            return
        if self._pings.should_ask(now_s):
            self.core.ping(PAYLOAD)
            self._write()
        for call in [call for call in self.receiving.values() if self._is_slow(call, now_s)]:
            call.refuse(Refusal(_DEADLINE_EXCEEDED, "the request came too slowly"))
        age_s = settings.max_connection_age_s
        if age_s is not None and now_s - self._opened_s >= age_s:
            self.drain()
            if now_s - self._opened_s >= age_s + settings.max_connection_age_grace_s:
                self.cut_off()

    def _handle(self, events: "list[Event]") -> None:
        calls = self._calls
        timed: list[H2Call] = []
        now_ns: int | None = None
        for event in events:
            kind = type(event)
            if kind is DataReceived:
                stream_id, data, has_ended = cast("DataReceived", event)
                call = calls.get(stream_id)
                if call is not None:
                    call.feed(data, has_ended)
                else:
                    self.core.consumed(stream_id, len(data))
            elif kind is RequestStarted:
                stream_id, headers, has_ended = cast("RequestStarted", event)
                head = self._head(stream_id, headers, has_ended)
                if head is None:
                    continue
                deadline_ns = None
                if head.timeout_ns is not None:
                    if now_ns is None:
                        now_ns = self.front.engine.now_ns()
                    deadline_ns = now_ns + head.timeout_ns
                begun = (UnaryCall if head.method.kind is Kind.UNARY else StreamedCall)(self, stream_id, head, deadline_ns)
                calls[stream_id] = begun
                self.front.calls += 1
                if deadline_ns is not None:
                    timed.append(begun)
                if has_ended:
                    begun.feed(b"", True)
            else:
                self._handle_rare(event)
        for waiting in timed:
            if not waiting.is_over:
                waiting.arm(self.front.engine.now_ns())

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, StreamReset):
            self._forget(event.stream_id)
        elif isinstance(event, TrailersReceived):
            call = self._calls.get(event.stream_id)
            if call is not None:
                call.feed(b"", True)
        elif isinstance(event, HeadersTooLarge):
            most = self.front.h2_limits
            text = (
                f"the metadata takes {event.size_bytes} bytes in {event.count} fields; "
                f"{most.header_list_bytes} bytes in {most.header_count} are allowed"
            )
            self._refuse(event.stream_id, Refusal(_RESOURCE_EXHAUSTED, text), event.end_stream)
        elif isinstance(event, PingReceived):
            if self._pings.is_too_many(self.front.loop.time()):
                self.core.close(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
                self._end_calls()
        elif isinstance(event, ConnectionEnded):
            self._end_calls()

    def _head(self, stream_id: int, headers: Headers, has_ended: bool) -> RequestHead | None:
        """The head of a call that may begin; None: it was answered already."""
        if self.front.calls >= self.front.limits.grpc_concurrent_rpcs or self._unread_bytes > self.front.limits.grpc_unread_bytes:
            self._refuse(stream_id, _TOO_MANY_CALLS, has_ended)
            return None
        # The core gives the same object for fields it has seen before; what is kept here keeps its id from being used again.
        known = self._heads.get(id(headers))
        if known is not None:
            return known[1]
        try:
            head = read_head(headers, self.front.methods)
        except NotGrpc as error:
            self.core.send_headers(stream_id, plain_block(error.status), end_stream=True)
            if not has_ended:
                self.core.reset_stream(stream_id, ErrorCode.NO_ERROR)
            return None
        except CallFault as error:
            self._refuse(stream_id, error.refusal, has_ended)
            return None
        if len(self._heads) >= _KEPT_HEADS:
            self._heads.clear()
        self._heads[id(headers)] = (headers, head)
        return head

    def _refuse(self, stream_id: int, refusal: Refusal, has_ended: bool) -> None:
        """Answers a request that becomes no call."""
        if has_ended:
            self.send_end(stream_id, refusal_block(refusal, is_first=True))
        else:
            self._calls[stream_id] = RefusedCall(self, stream_id, refusal)
            self.front.calls += 1

    def _reset_unfinished(self, stream_id: int) -> None:
        # RFC 9113, section 8.1: the answer is complete, and the rest of the request is of no use.
        if stream_id in self._unread:
            self._unfinished.add(stream_id)
        else:
            self.core.reset_stream(stream_id, ErrorCode.NO_ERROR)

    def _work_off(self) -> None:
        """Handles one slice of the backlog; goes on after others have had their turn."""
        backlog = self._backlog
        self._is_output_noticed = True
        self._handle([backlog.popleft() for _ in range(min(_SLICE, len(backlog)))])
        self._write()
        if self._transport.is_closing():
            backlog.clear()
        elif backlog:
            self.front.loop.call_soon(self._work_off)
        else:
            self._transport.resume_reading()

    def _write(self) -> None:
        """Hands what is to be sent to the transport: all of it where that is little, else a part, with others' turns between."""
        self._is_output_noticed = False
        if self._is_paused or self._transport.is_closing():
            return
        pieces = self.core.data_to_send()
        if pieces:
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            elif sum(map(len, pieces)) <= _JOINED_BYTES:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)
        for stream_id in self.core.take_drained():
            self._note_drained(stream_id)
        if self.core.has_output:
            self.notice_output()
        elif self.core.is_finished:
            self._transport.close()

    def _note_drained(self, stream_id: int) -> None:
        waiter = self._drains.get(stream_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._forget_unread(stream_id)
        if stream_id in self._unfinished:
            self._unfinished.discard(stream_id)
            self.core.reset_stream(stream_id, ErrorCode.NO_ERROR)

    def _forget_unread(self, stream_id: int) -> None:
        size_bytes = self._unread.pop(stream_id, 0)
        if size_bytes:
            self._unread_bytes -= size_bytes
            self.front.engine.release(size_bytes)

    def _forget(self, stream_id: int) -> None:
        """A stream is gone."""
        self._forget_unread(stream_id)
        self._unfinished.discard(stream_id)
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self.front.calls -= 1
            call.abandon()

    def _end_calls(self) -> None:
        """All streams are gone."""
        for stream_id in [*self._calls, *self._unread]:
            self._forget(stream_id)

    def _finish_drain(self) -> None:
        if not self._transport.is_closing():
            self.core.finish_drain()
            self._write()

    def _is_stuck(self, now_s: float) -> bool:
        """Whether the client has taken nothing for too long of what was written to it, or of answers that wait for its windows."""
        buffered_bytes = self._transport.get_write_buffer_size()
        is_waiting = buffered_bytes > 0 or bool(self._unread)
        waiting_bytes = buffered_bytes + self._unread_bytes
        if not is_waiting or waiting_bytes != self._buffered_bytes or self._stuck_s is None:
            self._stuck_s = now_s if is_waiting else None
            self._buffered_bytes = waiting_bytes
            return False
        return now_s - self._stuck_s > self.front.limits.write_idle_timeout_s

    def _is_slow(self, call: UnaryCall, now_s: float) -> bool:
        limits = self.front.limits
        if now_s - call.heard_s > limits.body_idle_timeout_s:
            return True
        taken_s = now_s - call.started_s
        return taken_s > limits.body_idle_timeout_s and call.received_bytes < taken_s * limits.body_bytes_per_s
