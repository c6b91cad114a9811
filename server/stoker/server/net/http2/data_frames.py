"""DATA as it is received, and the windows that go with it (RFC 9113, sections 5.2 and 6.1)."""

from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.events import DataReceived, Flood
from stoker.server.net.http2.frames import FLAG_END_STREAM, FLAG_PADDED, FRAME_HEADER, HEADER_BYTES, ConnectionFault, ErrorCode, StreamFault
from stoker.server.net.http2.inbound import Inbound
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.send import Output
from stoker.server.net.http2.streams import NEXT, Inflow, Next, Step, Stream, StreamTable

#: Parts of at least so many bytes are handed on as views, and smaller ones from 1 KiB that are a quarter of the read: a view keeps the
#: whole read in memory, which must not be much more than the window accounts for.
_VIEW_BYTES: Final = 16_384
_SMALL_VIEW_BYTES: Final = 1024
_VIEW_SHARE: Final = 4
#: A DATA frame of this size for a stream that was reset is not charged: much may have been on its way, and the window bounds it.
_LATE_FREE_BYTES: Final = 1024

#: Bytes in a receive buffer are reported when they reach this size, at the end of a body, and by `report_written`: a report of each read
#: took a tenth of the CPU time of eight images that arrive together.
_MAX_UNREPORTED_BYTES: Final = 128 * 1024
#: The same for all streams of a connection together: unreported bytes do not count against the byte budget of all requests.
_MAX_UNREPORTED_TOTAL_BYTES: Final = 8 * _MAX_UNREPORTED_BYTES

_unpack: Final = FRAME_HEADER.unpack_from
_OPEN: Final = Next.OPEN
_HALF_CLOSED_REMOTE: Final = Next.HALF_CLOSED_REMOTE
_CLOSED: Final = Next.CLOSED
_RECEIVE_DATA: Final = Step.RECEIVE_DATA
_RECEIVE_DATA_END: Final = Step.RECEIVE_DATA_END


class DataFrames:
    """Takes DATA frames, complete or in parts. Confined to: one connection."""

    __slots__ = (
        "_ends",
        "_half_window",
        "_inbound",
        "_inflow",
        "_max_unreported_bytes",
        "_max_unreported_total_bytes",
        "_most_bytes",
        "_open",
        "_output",
        "_table",
        "_unreported_total_bytes",
    )

    def __init__(self, limits: H2Limits, inbound: Inbound, output: Output, table: StreamTable, inflow: Inflow) -> None:
        self._inbound = inbound
        self._output = output
        self._table = table
        self._open = table.open
        self._inflow = inflow
        self._half_window = max(1, limits.stream_window_bytes // 2)
        self._most_bytes = limits.frame_bytes
        #: Whether the incomplete frame ends the request.
        self._ends = False
        # Only reported bytes can be given back to the windows: unreported ones must stay a small part of them.
        self._max_unreported_bytes = min(_MAX_UNREPORTED_BYTES, limits.stream_window_bytes // 4)
        self._max_unreported_total_bytes = min(_MAX_UNREPORTED_TOTAL_BYTES, limits.connection_window_bytes // 4)
        self._unreported_total_bytes = 0

    def consumed(self, stream_id: int, count: int) -> None:
        """Gives window back to the peer; see `ServerConnection.consumed`."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        count = min(count, stream.unconsumed)
        stream.unconsumed -= count
        stream.pending_update += count
        if stream.pending_update >= self._half_window and stream.state <= Next.HALF_CLOSED_LOCAL and not stream.is_held_back:
            self._output.control(frames.window_update(stream_id, stream.pending_update))
            stream.receive_window += stream.pending_update
            stream.pending_update = 0
        self._inflow.refund(count)

    def hold_back(self, stream_id: int, *, is_held_back: bool) -> None:
        """Withholds the window of a stream, or gives it back; see `ServerConnection.hold_back`."""
        stream = self._open.get(stream_id)
        if stream is not None:
            stream.is_held_back = is_held_back
            self.consumed(stream_id, 0)

    def set_receive_buffer(self, stream_id: int, receive_buffer: memoryview, size_bytes: int) -> None:
        """Puts the next bytes of a request into `receive_buffer`; see `ServerConnection.set_receive_buffer`."""
        stream = self._open.get(stream_id)
        if stream is not None:
            stream.receive_buffer = receive_buffer
            stream.receive_left = size_bytes

    def receive_buffer(self, stream_id: int) -> memoryview | None:
        """The buffer that takes the next bytes of a stream; None: there is none."""
        stream = self._open.get(stream_id)
        return None if stream is None else stream.receive_buffer

    def copy_frames(self, data: bytes | memoryview, position: int, size: int) -> int:
        """Copies whole DATA frames of `data[position:size]` into receive buffers, up to the first frame that needs more than a copy.

        Clients cut a large message into many frames of 16 KiB, and most of its CPU time is spent here: one step does the work of `begin`
        and `part` for each frame. Returns the position behind the last frame that was copied.
        """
        inflow, streams, most = self._inflow, self._open, self._most_bytes
        stream: Stream | None = None
        taken = 0
        while size - position >= HEADER_BYTES:
            header: tuple[int, int, int] = _unpack(data, position)
            word, flags, stream_id = header
            start = position + HEADER_BYTES
            length = word >> 8
            end = start + length
            if word & 0xFF or flags or end > size or not 0 < length <= most:
                break
            if stream is None or stream.id != stream_id:
                if stream is not None:
                    self._note_frames(stream, taken)
                    taken = 0
                stream = streams.get(stream_id)
                if stream is None or stream.receive_buffer is None or stream.body_left is not None or stream.state is not _OPEN:
                    return position
            receive_buffer = stream.receive_buffer
            assert receive_buffer is not None
            behind = taken + length
            if behind >= stream.receive_left or behind > stream.receive_window or length > inflow.window:
                # The last of a message, or too much: `whole` takes it.
                break
            inflow.window -= length
            receive_buffer[taken:behind] = data[start:end]
            taken = behind
            position = end
        if stream is not None:
            self._note_frames(stream, taken)
        return position

    def _note_frames(self, stream: Stream, count: int) -> None:
        """Notes that `count` bytes, fewer than it takes, were written to a stream's buffer."""
        if count:
            receive_buffer = stream.receive_buffer
            assert receive_buffer is not None
            stream.receive_buffer = receive_buffer[count:]
            stream.receive_left -= count
            stream.receive_window -= count
            stream.unconsumed += count
            self._report_written(stream, count, False)

    def whole(self, flags: int, stream_id: int, data: bytes | memoryview, start: int, end: int) -> None:
        """Takes a complete frame: `data[start:end]`."""
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
                and stream.receive_buffer is None
            ):
                self._inflow.window -= length
                stream.receive_window -= length
                stream.unconsumed += length
                stream.body_left = None
                stream.state = _HALF_CLOSED_REMOTE
                self._inbound.events.append(DataReceived(stream_id, bytes(data[start:end]), True))
                return
        if flags & FLAG_PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a padding length")
            payload -= 1 + data[start]
            start += 1
        self.begin(flags, stream_id, length, payload)
        self.part(stream_id, data, start, start + payload, True)

    def begin(self, flags: int, stream_id: int, length: int, payload: int) -> None:
        """Charges a frame of `length` bytes, `payload` of them data, to the windows before any of it is read.

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
            self._inbound.charge(Flood.CONTROL, "empty DATA frames")

    def part(self, stream_id: int, data: bytes | memoryview, start: int, end: int, is_last: bool) -> None:
        """Hands on `data[start:end]` of the frame begun last; `is_last`: the frame has no more."""
        stream = self._open.get(stream_id)
        if stream is None:
            return
        if stream.receive_buffer is not None:
            count = min(end - start, stream.receive_left)
            stream.receive_buffer[:count] = memoryview(data)[start : start + count]
            start += count
            self._note_written(stream, count, is_last and start == end)
            if start == end:
                return
        ends = is_last and self._ends
        length = end - start
        if not length and not ends:
            return
        # A memoryview belongs to the transport, which reads into it again.
        is_view = type(data) is bytes and (length >= _VIEW_BYTES or (length >= _SMALL_VIEW_BYTES and length * _VIEW_SHARE >= len(data)))
        piece = memoryview(data)[start:end] if is_view else bytes(data[start:end])
        self._inbound.events.append(DataReceived(stream_id, piece, ends))
        if ends:
            self._end(stream)

    def buffer_written(self, stream_id: int, count: int, left: int) -> int:
        """Notes that up to `count` bytes were read into the buffer of the frame begun last, of which `left` bytes are missing.

        Returns how many of them belong to the frame and into the buffer, or to a stream that is gone.
        """
        count = min(count, left)
        stream = self._open.get(stream_id)
        if stream is not None:
            count = min(count, stream.receive_left)
            self._note_written(stream, count, count == left)
        return count

    def _note_written(self, stream: Stream, count: int, is_last: bool) -> None:
        receive_buffer = stream.receive_buffer
        assert receive_buffer is not None
        ends = is_last and self._ends
        stream.receive_left -= count
        stream.receive_buffer = receive_buffer[count:] if stream.receive_left else None
        self._report_written(stream, count, ends)
        if ends:
            self._end(stream)

    def _report_written(self, stream: Stream, count: int, ends: bool) -> None:
        unreported_bytes = stream.unreported_bytes = stream.unreported_bytes + count
        if ends or stream.receive_buffer is None or unreported_bytes >= self._max_unreported_bytes:
            self._unreported_total_bytes -= unreported_bytes - count
            self._inbound.report_written(stream, ends=ends)
        else:
            self._unreported_total_bytes += count
            if self._unreported_total_bytes >= self._max_unreported_total_bytes:
                self.report_all_written()

    def report_all_written(self) -> None:
        """Reports all unreported bytes of all streams."""
        self._unreported_total_bytes = 0
        for stream in self._open.values():
            self._inbound.report_written(stream)

    def _end(self, stream: Stream) -> None:
        """The request is complete."""
        stream.receive_buffer = None
        stream.state = after = NEXT[stream.state][_RECEIVE_DATA_END]
        if after is _CLOSED:
            self._table.close(stream)

    def _late(self, stream_id: int, length: int) -> None:
        """Drops DATA for a stream that the server has reset; the connection's window counts it all the same."""
        if not self._table.was_reset_here(stream_id):
            self._inbound.check_crossed(stream_id, _RECEIVE_DATA)
        if length < _LATE_FREE_BYTES:
            self._inbound.charge(Flood.CONTROL, "frames for streams that are reset")
        self._inflow.refund(length)
