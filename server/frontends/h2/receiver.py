"""The receiving half: what each frame means, and which rule it breaks."""

from collections.abc import Callable
from struct import Struct
from typing import Final

from server.frontends.h2 import frames
from server.frontends.h2.budgets import Budget
from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import (
    DataReceived,
    Event,
    HeadersTooLarge,
    PeerLeaving,
    PingAcked,
    PingReceived,
    RequestStarted,
    StreamReset,
    TrailersReceived,
)
from server.frontends.h2.faults import ConnectionFault, StreamFault
from server.frontends.h2.frames import (
    CONTINUATION,
    DEFAULT_WINDOW_BYTES,
    FLAG_ACK,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAG_PRIORITY,
    SETTINGS,
    SETTINGS_ACK,
)
from server.frontends.h2.header_blocks import HeaderDecoder
from server.frontends.h2.header_rules import MalformedError, check_trailers
from server.frontends.h2.limits import H2Limits
from server.frontends.h2.output import Inflow, Output
from server.frontends.h2.sender import Sender
from server.frontends.h2.settings import read_settings
from server.frontends.h2.stream_states import NEXT, Next, Step
from server.frontends.h2.streams import Stream, StreamTable

#: Index of the handler for types this server does not know.
UNKNOWN: Final = 10
#: Payload of the PING that goes with the first GOAWAY of a graceful end.
DRAIN_PING: Final = b"draining"
#: `Receiver.expected` when any frame may come.
ANY: Final = -1
#: Parts of DATA that are at least so long, or a quarter of what was read, are handed on as views.
_VIEW_BYTES: Final = 16_384
#: Data for a stream that is gone is free of charge from this size on: what was on its way can be much, and the window bounds it.
_LATE_FREE_BYTES: Final = 1024

_u32: Final = Struct(">I").unpack_from
_two_u32: Final = Struct(">II").unpack_from
_CLOSED: Final = Next.CLOSED
_RECEIVE_DATA: Final = Step.RECEIVE_DATA
_RECEIVE_DATA_END: Final = Step.RECEIVE_DATA_END

_Handler = Callable[[int, int, bytes, int, int], None]


class Receiver:
    """Handlers of frames: `handlers[type](flags, stream_id, data, start, end)`, the payload being `data[start:end]`.

    They raise `ConnectionFault` and `StreamFault`, and append to `events`. Confined to: one connection.

    Attributes:
        events: For the application.
        now_s: The time of what is being received.
        expected: The type of the only frame that may come next, or `ANY`.
        is_draining: The peer was asked to open no more streams.
        is_refusing: New streams are refused.
        settings_unacked: SETTINGS frames of ours that the peer has not acknowledged.
    """

    def __init__(self, limits: H2Limits, output: Output, table: StreamTable, inflow: Inflow, sender: Sender, now_s: float) -> None:
        self._limits = limits
        self._output = output
        self._table = table
        self._open = table.open
        self._inflow = inflow
        self._sender = sender
        self._decoder = HeaderDecoder(limits)
        self.events: list[Event] = []
        self.now_s = now_s
        self.expected = SETTINGS
        self.is_draining = False
        self.is_refusing = False
        self.settings_unacked = 1
        #: What a new stream's peer may send: until our SETTINGS are known to it, at least the protocol's default.
        self._stream_window = max(DEFAULT_WINDOW_BYTES, limits.stream_window_bytes)
        self._half_stream_window = max(1, limits.stream_window_bytes // 2)
        self._control = Budget(limits.control_burst, limits.control_per_s, now_s)
        self._updates = Budget(limits.control_burst, limits.control_per_s, now_s)
        self._updates_paid_frames = 0
        self._resets = Budget(limits.reset_burst, limits.reset_per_s, now_s)
        self._faults = Budget(limits.fault_burst, limits.fault_per_s, now_s)
        #: Whether the DATA frame in hand ends the request.
        self._data_ends = False
        #: A header block in parts: of which stream, with which flags, what is there of it, and how many frames it took.
        self._block_stream = 0
        self._block_flags = 0
        self._block = bytearray()
        self._block_frames = 0

    @property
    def handlers(self) -> tuple[_Handler, ...]:
        """By frame type, `UNKNOWN` last."""
        return (
            *(self._data, self._headers, self._priority, self._rst_stream, self._settings, self._push_promise),
            *(self._ping, self._goaway, self._window_update, self._continuation, self.unknown),
        )

    def consumed(self, stream_id: int, count: int) -> None:
        """Gives window back; see `ServerConnection.consumed`."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        count = min(count, stream.unconsumed)
        stream.unconsumed -= count
        stream.owed += count
        if stream.owed >= self._half_stream_window and stream.state <= Next.HALF_CLOSED_LOCAL:
            self._output.control(frames.window_update(stream_id, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0
        self._inflow.refund(count)

    def refuse_new(self) -> None:
        """Names the last stream to the peer, and refuses later ones."""
        if not self.is_refusing:
            self.is_refusing = True
            self._output.control(frames.goaway(self._table.last_id, ErrorCode.NO_ERROR, b""))

    def fault(self, fault: StreamFault) -> None:
        """Resets a stream whose peer broke a rule."""
        self._charge(self._faults, "requests that break rules")
        self._reset(fault.stream_id, fault.code)

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        self._output.reply(frames.rst_stream(stream_id, code))
        self._table.remember_reset(stream_id)
        stream = self._open.get(stream_id)
        if stream is not None:
            self._table.close(stream)
            self.events.append(StreamReset(stream_id, code, True))

    def _charge(self, budget: Budget, what: str) -> None:
        if not budget.spend(self.now_s):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")

    # ---- DATA

    def _data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        length = payload = end - start
        if flags & FLAG_PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a padding length")
            payload -= 1 + data[start]
            start += 1
        self.begin_data(flags, stream_id, length, payload)
        self.part(stream_id, data, start, start + payload, True)

    def begin_data(self, flags: int, stream_id: int, length: int, payload: int) -> None:
        """Charges a DATA frame of `length` bytes, `payload` of them data, to the windows, and notes what its end will mean."""
        if payload < 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA with more padding than payload")
        inflow = self._inflow
        inflow.window -= length
        if inflow.window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        self._data_ends = flags & FLAG_END_STREAM == FLAG_END_STREAM
        stream = self._open.get(stream_id)
        if stream is None:
            self._late_data(stream_id, length)
            return
        stream.unconsumed += length
        if NEXT[stream.state][_RECEIVE_DATA] > _CLOSED:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA behind the end of the request")
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
        if payload != length:
            self.consumed(stream_id, length - payload)
        if stream.body_left is not None:
            stream.body_left -= payload
            if stream.body_left < 0 or (stream.body_left and self._data_ends):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "the body does not have its content-length")
        if not payload and not self._data_ends:
            self._charge(self._control, "empty DATA frames")

    def part(self, stream_id: int, data: bytes, start: int, end: int, is_last: bool) -> None:
        """Hands on `data[start:end]` of the DATA frame begun last; `is_last`: the frame has no more."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        ends = is_last and self._data_ends
        if end == start and not ends:
            return
        length = end - start
        is_view = length >= _VIEW_BYTES or (length > 1024 and 4 * length >= len(data))
        self.events.append(DataReceived(stream_id, memoryview(data)[start:end] if is_view else data[start:end], ends))
        if ends:
            self._end_of_request(stream, NEXT[stream.state][_RECEIVE_DATA_END])

    def _late_data(self, stream_id: int, length: int) -> None:
        if not self._table.was_reset_here(stream_id):
            raise self._not_open(stream_id, Step.RECEIVE_DATA)
        if length < _LATE_FREE_BYTES:
            self._charge(self._control, "frames for streams that are reset")
        self._inflow.refund(length)

    def _end_of_request(self, stream: Stream, after: Next) -> None:
        stream.state = after
        if after is _CLOSED:
            self._table.close(stream)

    def _not_open(self, stream_id: int, step: Step) -> ConnectionFault:
        """The fault of a frame for a stream that is idle or closed."""
        if stream_id == 0:
            return ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{step.name.removeprefix('RECEIVE_')} for stream 0")
        outcome = NEXT[self._table.state_of(stream_id)][step]
        code = ErrorCode.STREAM_CLOSED if outcome is Next.LONG_CLOSED else ErrorCode.PROTOCOL_ERROR
        return ConnectionFault(code, f"{step.name.removeprefix('RECEIVE_')} for stream {stream_id}, which is not open")

    # ---- HEADERS, CONTINUATION

    def _headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if flags & (FLAG_PADDED | FLAG_PRIORITY):
            start, end = _unpadded(flags, data, start, end)
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS for stream {stream_id}, which no client can open")
        block = data[start:end]
        if flags & FLAG_END_HEADERS:
            self._whole_block(flags, stream_id, block)
            return
        self.expected = CONTINUATION
        self._block_stream = stream_id
        self._block_flags = flags
        self._block = bytearray(block)
        self._block_frames = 0

    def _continuation(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if self.expected != CONTINUATION or stream_id != self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION for stream {stream_id}, which has begun no header block")
        self._block += memoryview(data)[start:end]
        self._block_frames += 1
        if len(self._block) > self._limits.header_block_bytes or self._block_frames > self._limits.continuation_frames:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {len(self._block)} bytes in {self._block_frames} CONTINUATION frames"
            )
        if flags & FLAG_END_HEADERS:
            self.expected = ANY
            block = bytes(self._block)
            self._block = bytearray()
            self._whole_block(self._block_flags, stream_id, block)

    def _whole_block(self, flags: int, stream_id: int, block: bytes) -> None:
        if stream_id > self._table.last_id:
            self._request(stream_id, block, flags & FLAG_END_STREAM == FLAG_END_STREAM)
            return
        stream = self._open.get(stream_id)
        if stream is not None:
            self._trailers(stream, block, flags & FLAG_END_STREAM == FLAG_END_STREAM)
            return
        if not self._table.was_reset_here(stream_id):
            raise self._not_open_again(stream_id)
        self._charge(self._control, "frames for streams that are reset")
        self._decoder.fields(block)

    def _not_open_again(self, stream_id: int) -> ConnectionFault:
        if self._table.state_of(stream_id) is Next.IDLE:
            text = f"stream {stream_id} is opened after stream {self._table.last_id}"
            return ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)
        return self._not_open(stream_id, Step.RECEIVE_HEADERS)

    def _request(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        request = self._decoder.request(block)
        table = self._table
        table.begin(stream_id)
        limits = self._limits
        if self.is_refusing or len(self._open) >= limits.concurrent_streams:
            self._charge(self._resets, "refused requests")
            self._reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        if request.malformed is not None:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, request.malformed)
        if end_stream and request.content_length:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a content-length, but no body")
        state = NEXT[Next.IDLE][Step.RECEIVE_HEADERS_END if end_stream else Step.RECEIVE_HEADERS]
        self._open[stream_id] = Stream(stream_id, state, self._stream_window, self._sender.initial_window, request.content_length)
        if request.size_bytes > limits.header_list_bytes or len(request.headers) > limits.header_count:
            self._charge(self._resets, "requests with too large headers")
            self.events.append(HeadersTooLarge(stream_id, request.size_bytes, len(request.headers), end_stream))
        else:
            self.events.append(RequestStarted(stream_id, request.headers, end_stream))

    def _trailers(self, stream: Stream, block: bytes, end_stream: bool) -> None:
        fields = self._decoder.fields(block)
        after = NEXT[stream.state][Step.RECEIVE_HEADERS_END if end_stream else Step.RECEIVE_HEADERS]
        if after is Next.STREAM_ERROR:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the request")
        if after is Next.MALFORMED:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "a second HEADERS that does not end the request")
        if stream.body_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "the body does not have its content-length")
        try:
            check_trailers(fields)
        except MalformedError as error:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if len(fields) > self._limits.header_count:
            raise StreamFault(stream.id, ErrorCode.ENHANCE_YOUR_CALM, f"{len(fields)} trailers")
        self.events.append(TrailersReceived(stream.id, fields))
        self._end_of_request(stream, after)

    # ---- the others

    def _priority(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Deprecated, and without effect (RFC 9113, section 5.3.2)."""
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY for stream 0")
        if end - start != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {end - start} bytes")
        self._charge(self._control, "PRIORITY frames")

    def _rst_stream(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {end - start} bytes")
        self._charge(self._resets, "RST_STREAM frames")
        stream = self._open.get(stream_id)
        if stream is None:
            if stream_id == 0 or self._table.state_of(stream_id) is Next.IDLE:
                raise self._not_open(stream_id, Step.RECEIVE_RST_STREAM)
            return
        self._table.close(stream)
        self.events.append(StreamReset(stream_id, _u32(data, start)[0], False))

    def _settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS for stream {stream_id}")
        self._charge(self._control, "SETTINGS frames")
        if flags & FLAG_ACK:
            if end != start:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            if self.expected == SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame acknowledges SETTINGS")
            if self.settings_unacked:
                self.settings_unacked -= 1
                self._settings_acked()
            return
        values = read_settings(data[start:end])
        self.expected = ANY
        if (table_bytes := values.get(frames.SETTING_HEADER_TABLE_SIZE)) is not None:
            self._sender.set_table_bytes(table_bytes)
        if (window_bytes := values.get(frames.SETTING_INITIAL_WINDOW_SIZE)) is not None:
            self._sender.set_initial_window(window_bytes)
        if (frame_bytes := values.get(frames.SETTING_MAX_FRAME_SIZE)) is not None:
            self._sender.set_frame_bytes(frame_bytes)
        self._output.reply(SETTINGS_ACK)

    def _settings_acked(self) -> None:
        limits = self._limits
        self._decoder.limit_table(limits.header_table_bytes)
        change = limits.stream_window_bytes - self._stream_window
        self._stream_window += change
        if change:
            for stream in self._open.values():
                stream.receive_window += change

    def _push_promise(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _ping(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"PING for stream {stream_id}")
        if end - start != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING of {end - start} bytes")
        self._charge(self._control, "PING frames")
        payload = data[start:end]
        if not flags & FLAG_ACK:
            self._output.reply(frames.frame(frames.PING, FLAG_ACK, 0, payload))
            self.events.append(PingReceived(payload))
        elif payload == DRAIN_PING and self.is_draining:
            self.refuse_new()
        else:
            self.events.append(PingAcked(payload))

    def _goaway(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY for stream {stream_id}")
        if end - start < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {end - start} bytes")
        self._charge(self._control, "GOAWAY frames")
        self.events.append(PeerLeaving(_two_u32(data, start)[1], data[start + 8 : end]))

    def _window_update(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {end - start} bytes")
        sent = self._sender.data_frames
        self._updates.earn((sent - self._updates_paid_frames) * self._limits.updates_per_frame)
        self._updates_paid_frames = sent
        self._charge(self._updates, "WINDOW_UPDATE frames")
        increment = _u32(data, start)[0] & frames.MOST_WINDOW_BYTES
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._sender.enlarge(increment)
            return
        stream = self._open.get(stream_id)
        if stream is None:
            if self._table.state_of(stream_id) is Next.IDLE:
                raise self._not_open(stream_id, Step.RECEIVE_WINDOW_UPDATE)
        elif not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        else:
            self._sender.enlarge_stream(stream, increment)

    def unknown(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Frames of other types are ignored (RFC 9113, section 5.5), within reason."""
        self._charge(self._control, "frames of unknown types")


def _unpadded(flags: int, data: bytes, start: int, end: int) -> tuple[int, int]:
    """Where the header block in HEADERS begins and ends."""
    extra = (1 if flags & FLAG_PADDED else 0) + (5 if flags & FLAG_PRIORITY else 0)
    if end - start < extra:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of {end - start} bytes with flags {flags:#x}")
    padding = data[start] if flags & FLAG_PADDED else 0
    if end - start - extra < padding:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS with more padding than payload")
    return start + extra, end - padding
