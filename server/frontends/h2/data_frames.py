"""DATA as it is received, and the windows that go with it (RFC 9113, sections 5.2 and 6.1)."""

from typing import Final

from server.frontends.h2 import frames
from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import DataReceived
from server.frontends.h2.faults import ConnectionFault, StreamFault
from server.frontends.h2.frames import FLAG_END_STREAM, FLAG_PADDED
from server.frontends.h2.inbound import Inbound
from server.frontends.h2.limits import H2Limits
from server.frontends.h2.output import Inflow, Output
from server.frontends.h2.stream_states import NEXT, Next, Step
from server.frontends.h2.streams import StreamTable

#: Parts of at least so many bytes are handed on as views, and smaller ones that are a quarter of what was read and worth it: a view holds
#: the whole read, which must not be much more than what the window accounts for.
_VIEW_BYTES: Final = 16_384
_SMALL_VIEW_BYTES: Final = 1024
_VIEW_SHARE: Final = 4
#: Data for a stream that is reset costs nothing from this size on: much may have been on its way, and the window bounds it.
_LATE_FREE_BYTES: Final = 1024

_OPEN: Final = Next.OPEN
_HALF_CLOSED_REMOTE: Final = Next.HALF_CLOSED_REMOTE
_CLOSED: Final = Next.CLOSED
_RECEIVE_DATA: Final = Step.RECEIVE_DATA
_RECEIVE_DATA_END: Final = Step.RECEIVE_DATA_END


class DataFrames:
    """Takes DATA frames, whole or in parts. Confined to: one connection."""

    __slots__ = ("_ends", "_half_window", "_inbound", "_inflow", "_open", "_output", "_table")

    def __init__(self, limits: H2Limits, inbound: Inbound, output: Output, table: StreamTable, inflow: Inflow) -> None:
        self._inbound = inbound
        self._output = output
        self._table = table
        self._open = table.open
        self._inflow = inflow
        self._half_window = max(1, limits.stream_window_bytes // 2)
        #: Whether the frame in hand ends the request.
        self._ends = False

    def consumed(self, stream_id: int, count: int) -> None:
        """Gives window back to the peer; see `ServerConnection.consumed`."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        count = min(count, stream.unconsumed)
        stream.unconsumed -= count
        stream.owed += count
        if stream.owed >= self._half_window and stream.state <= Next.HALF_CLOSED_LOCAL:
            self._output.control(frames.window_update(stream_id, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0
        self._inflow.refund(count)

    def whole(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Takes a frame that is all there: `data[start:end]`."""
        length = payload = end - start
        if flags == FLAG_END_STREAM and length < _SMALL_VIEW_BYTES:
            # The last frame of nearly every request: what `begin` and `part` would do with it, 0.7 us cheaper in one step.
            stream = self._open.get(stream_id)
            if (
                stream is not None
                and stream.state is _OPEN
                and length <= stream.receive_window
                and length <= self._inflow.window
                and (stream.body_left is None or stream.body_left == length)
            ):
                self._inflow.window -= length
                stream.receive_window -= length
                stream.unconsumed += length
                stream.body_left = None
                stream.state = _HALF_CLOSED_REMOTE
                self._inbound.events.append(DataReceived(stream_id, data[start:end], True))
                return
        if flags & FLAG_PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a padding length")
            payload -= 1 + data[start]
            start += 1
        self.begin(flags, stream_id, length, payload)
        self.part(stream_id, data, start, start + payload, True)

    def begin(self, flags: int, stream_id: int, length: int, payload: int) -> None:
        """Charges a frame of `length` bytes, `payload` of them data, to the windows before any of it is looked at.

        Raises:
            ConnectionFault: it exceeds the connection's window, or its stream is not open.
            StreamFault: it exceeds the stream's window or content-length, or the request has ended.
        """
        if payload < 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA with more padding than payload")
        inflow = self._inflow
        inflow.window -= length
        if inflow.window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        self._ends = ends = flags & FLAG_END_STREAM == FLAG_END_STREAM
        stream = self._open.get(stream_id)
        if stream is None:
            self._late(stream_id, length)
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
            if stream.body_left < 0 or (stream.body_left and ends):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "the body does not have its content-length")
        if not payload and not ends:
            self._inbound.charge(self._inbound.control, "empty DATA frames")

    def part(self, stream_id: int, data: bytes, start: int, end: int, is_last: bool) -> None:
        """Hands on `data[start:end]` of the frame begun last; `is_last`: the frame has no more."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        ends = is_last and self._ends
        length = end - start
        if not length and not ends:
            return
        is_view = length >= _VIEW_BYTES or (length >= _SMALL_VIEW_BYTES and length * _VIEW_SHARE >= len(data))
        self._inbound.events.append(DataReceived(stream_id, memoryview(data)[start:end] if is_view else data[start:end], ends))
        if ends:
            stream.state = after = NEXT[stream.state][_RECEIVE_DATA_END]
            if after is _CLOSED:
                self._table.close(stream)

    def _late(self, stream_id: int, length: int) -> None:
        """Drops what comes for a stream that we have reset; the connection's window counts it all the same."""
        if not self._table.was_reset_here(stream_id):
            self._inbound.check_crossed(stream_id, _RECEIVE_DATA)
        if length < _LATE_FREE_BYTES:
            self._inbound.charge(self._inbound.control, "frames for streams that are reset")
        self._inflow.refund(length)
