"""The calls of one connection: the events of the HTTP/2 core admit, start, feed and end them."""

from stoker.backends.api.errors import ServingError
from stoker.server.net.http2.events import (
    ConnectionEnded,
    DataReceived,
    DataWritten,
    Event,
    FloodRejected,
    HeadersTooLarge,
    KeptFields,
    PingReceived,
    RequestStarted,
    StreamReset,
    TrailersReceived,
)
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.http2.call import H2Call, UnaryCall
from stoker.server.rpc.http2.connection_context import Connection, ConnectionContext
from stoker.server.rpc.http2.peer_monitor import PeerMonitor, UnflushedResponses
from stoker.server.rpc.http2.rejected_call import RejectedCall
from stoker.server.rpc.http2.responses import (
    RESERVED_SLOT,
    TOO_MANY_CALLS,
    TOO_MUCH_UNFLUSHED,
    metadata_too_large,
    plain_block,
    rejection_block,
)
from stoker.server.rpc.http2.streamed_call import StreamedCall
from stoker.server.rpc.method import Kind
from stoker.server.rpc.rejection import CallFault, rejection_of
from stoker.server.rpc.request_head import NotGrpc, RequestHead, read_head
from stoker.server.rpc.restricted import is_reserved_method


class Admission:
    """Confined to: one connection, on the event loop."""

    __slots__ = ("_context", "_most_calls", "_most_unflushed_bytes", "_unflushed")

    def __init__(self, context: ConnectionContext, unflushed: UnflushedResponses) -> None:
        """`unflushed` holds the responses that the peer has not received yet."""
        self._context = context
        self._unflushed = unflushed
        self._most_calls = context.limits.grpc_concurrent_rpcs
        self._most_unflushed_bytes = context.limits.grpc_unflushed_bytes

    def head_of(self, fields: KeptFields, *, is_reserved: bool) -> RequestHead | bytes:
        """The head of a call that may begin, or else the header block that rejects it; `is_reserved`: see `ConnectionGate`."""
        context = self._context
        try:
            if context.calls >= self._most_calls:
                raise CallFault(TOO_MANY_CALLS)
            most_bytes = self._most_unflushed_bytes
            if self._unflushed.size_bytes > most_bytes and not self._unflushed.is_being_read(most_bytes):
                raise CallFault(TOO_MUCH_UNFLUSHED)
            derived = fields.derived
            if isinstance(derived, RequestHead):
                head = derived
            else:
                head = fields.derived = read_head(fields.headers, context.methods)
            if is_reserved and not is_reserved_method(head.method.path):
                raise CallFault(RESERVED_SLOT)
            if head.method.require is not None:
                try:
                    head.method.require(head.metadata.get)
                except ServingError as error:
                    # Before the message arrives: calls without a key reserve nothing of the byte budget.
                    raise CallFault(rejection_of(error, head.method)) from None
            return head
        except CallFault as error:
            return rejection_block(error.rejection, is_first=True)
        except NotGrpc as error:
            return plain_block(error.status)


class ConnectionCalls:
    """Confined to: the event loop.

    It has no reference to its connection, which the methods get: a cycle would leave each closed connection to the garbage collector.

    Attributes:
        open: Calls without a response, by stream id.
        receiving: Unary calls whose request is incomplete, and streamed calls with a message that has its buffer, by stream id.
        arriving: Streamed calls with an incomplete message, by stream id.
        unflushed: Responses that wait for the client to read them.
    """

    __slots__ = ("_admission", "_context", "_watch", "_zero_copy_pending", "arriving", "open", "receiving", "unflushed")

    def __init__(self, context: ConnectionContext, watch: PeerMonitor) -> None:
        self._context = context
        self._watch = watch
        self.open: dict[int, H2Call | RejectedCall] = {}
        self.receiving: dict[int, H2Call] = {}
        self.arriving: dict[int, StreamedCall] = {}
        self.unflushed = UnflushedResponses(context)
        self._admission = Admission(context, self.unflushed)
        self._zero_copy_pending: list[H2Call] = []

    def follow(self, connection: Connection, events: list[Event], *, is_last: bool) -> None:
        """Handles events of `connection` in their order; `is_last`: its core has reported no others."""
        context, core, calls = self._context, connection.core, self.open
        fresh: list[H2Call] = []
        now_ns: int | None = None
        for event in events:
            if type(event) is DataReceived:
                call = calls.get(event.stream_id)
                if call is not None:
                    call.feed(event.data, event.end_stream)
                else:
                    core.consumed(event.stream_id, len(event.data))
            elif type(event) is DataWritten:
                receiver = self.receiving.get(event.stream_id)
                if receiver is not None:
                    receiver.note_written(event.size_bytes, event.end_stream)
                else:
                    core.consumed(event.stream_id, event.size_bytes)
            elif type(event) is RequestStarted:
                stream_id, has_ended = event.stream_id, event.end_stream
                head = self._admission.head_of(event.fields, is_reserved=connection.is_reserved)
                if isinstance(head, bytes):
                    self._reject(connection, stream_id, head, has_ended)
                    continue
                deadline_ns = None
                if head.timeout_ns is not None:
                    if now_ns is None:
                        now_ns = context.engine.now_ns()
                    deadline_ns = now_ns + head.timeout_ns
                begun: H2Call = (
                    UnaryCall(connection, stream_id, head, deadline_ns)
                    if head.method.kind is Kind.UNARY
                    else StreamedCall(connection, stream_id, head, deadline_ns)
                )
                calls[stream_id] = begun
                context.calls += 1
                fresh.append(begun)
                if has_ended:
                    begun.feed(b"", True)
            else:
                self._follow_rare(connection, event)
        for late in fresh:
            # Most calls need nothing more: they have completed, or their request is complete and they have no deadline.
            if not late.is_over and (late.deadline_ns is not None or not late.has_ended):
                late.settle()
        if is_last and self._zero_copy_pending:
            for pending in self._zero_copy_pending:
                receive_buffer = pending.receive_buffer
                if receive_buffer is not None:
                    core.set_receive_buffer(pending.stream_id, receive_buffer, pending.missing_bytes)
                    connection.read_zero_copy()
            self._zero_copy_pending.clear()

    def expect_zero_copy(self, call: H2Call) -> None:
        """Receives the rest of a call's message into its buffer, once all earlier events are handled."""
        self._zero_copy_pending.append(call)

    def slow(self, now_s: float, *, is_reading: bool) -> list[H2Call]:
        """The calls whose messages arrive too slowly; `is_reading`: the server has read since the last sweep."""
        if any(isinstance(call, UnaryCall) and call.is_waiting for call in self.receiving.values()):
            self._context.engine.budget.queue.sweep(now_s)
        slow: list[H2Call] = []
        for call in {**self.receiving, **self.arriving}.values():
            progress = call.progress
            if progress is None:
                continue
            if not is_reading or (
                call.is_waiting if isinstance(call, UnaryCall) else isinstance(call, StreamedCall) and call.is_held_back()
            ):
                progress.pause(now_s)
            if progress.slowness(now_s) is not None:
                slow.append(call)
        return slow

    def forget(self, stream_id: int) -> None:
        """Ends the call of a closed stream."""
        self.unflushed.forget(stream_id)
        call = self.open.pop(stream_id, None)
        if call is not None:
            self._context.calls -= 1
            call.abandon()

    def forget_all(self) -> None:
        """Ends all calls: the connection is closed."""
        self._zero_copy_pending.clear()
        for stream_id in [*self.open, *self.unflushed.streams()]:
            self.forget(stream_id)

    def _follow_rare(self, connection: Connection, event: Event) -> None:
        if isinstance(event, StreamReset):
            self.forget(event.stream_id)
        elif isinstance(event, TrailersReceived):
            call = self.open.get(event.stream_id)
            if call is not None:
                call.feed(b"", True)
        elif isinstance(event, HeadersTooLarge):
            stream_id, size_bytes, count, has_ended = event
            self._reject(connection, stream_id, metadata_too_large(size_bytes, count, connection.context.h2_limits), has_ended)
        elif isinstance(event, PingReceived):
            now_s, sent_frames = connection.context.loop.time(), connection.core.sent_data_frames
            if self._watch.pings.is_too_many(now_s, has_calls=bool(self.open), sent_frames=sent_frames):
                # gRPC proposal A8: clients that read this ping half as often from then on.
                connection.core.refuse(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
                connection.note_refused(GoawayReason.PINGS)
        elif isinstance(event, FloodRejected):
            connection.note_refused(GoawayReason(event.flood.value))
        elif isinstance(event, ConnectionEnded):
            is_excess = event.error_code == ErrorCode.ENHANCE_YOUR_CALM
            connection.context.engine.note_goaway(GoawayReason.EXCESS if is_excess else GoawayReason.PROTOCOL)
            self.forget_all()

    def _reject(self, connection: Connection, stream_id: int, block: bytes, has_ended: bool) -> None:
        """Responds with one header block to a request that does not become a call."""
        if has_ended:
            connection.send_end(stream_id, block)
        else:
            self.open[stream_id] = RejectedCall(connection, stream_id, block)
            self._context.calls += 1
