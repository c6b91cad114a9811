"""The sending half: responses under the peer's flow control, without head-of-line blocking by a large response.

Data that fits the windows goes to the output at once. Other data waits on its stream, by reference. The streams that may send take turns,
one frame each, whenever the transport takes the output.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FRAME_HEADER,
    HEADERS,
    MOST_WINDOW_BYTES,
    ConnectionFault,
    ErrorCode,
    MisuseError,
    StreamFault,
)
from stoker.server.net.http2.headers import NO_TABLE
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.streams import NEXT, Next, Step, Stream, StreamTable


class Output:
    """Frames that wait for the transport, in pieces. Confined to: one connection.

    Attributes:
        pieces: The pieces of the next write.
        size: Their bytes: exact for data, roughly for frames without data.
        control_frames: Frames among them that are no part of a response.
    """

    __slots__ = ("_most_control", "control_frames", "pieces", "size")

    def __init__(self, most_control: int) -> None:
        """`most_control`: replies to frames of the peer that may wait."""
        self.pieces: list[bytes | memoryview] = []
        self.size = 0
        self.control_frames = 0
        self._most_control = most_control

    def control(self, frame: bytes) -> None:
        """Adds a frame that is not part of a response."""
        self.pieces.append(frame)
        self.size += len(frame)
        self.control_frames += 1

    def reply(self, frame: bytes) -> None:
        """Adds a frame that replies to one of the peer.

        Raises:
            ConnectionFault: the peer causes more replies than it reads.
        """
        self.control(frame)
        if self.control_frames > self._most_control:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"{self.control_frames} control frames wait to be read")


_pack: Final = FRAME_HEADER.pack
_CLOSED: Final = Next.CLOSED
_HALF_CLOSED_LOCAL: Final = Next.HALF_CLOSED_LOCAL
_MISUSE: Final = Next.MISUSE
_SEND_HEADERS: Final = Step.SEND_HEADERS
_SEND_HEADERS_END: Final = Step.SEND_HEADERS_END
_SEND_DATA: Final = Step.SEND_DATA
_SEND_DATA_END: Final = Step.SEND_DATA_END
#: A DATA frame below it that does not end the data given by the application is a short frame.
_SHORT_FRAME_BYTES: Final = 1024
#: Streams that are gone and may still be in the queue, beside as many as are open.
_LISTED_SLACK: Final = 64
#: The end of the connection's window is kept for the streams that wait, so that small responses cannot starve a large one.
_KEPT_FOR_WAITING_BYTES: Final = DEFAULT_WINDOW_BYTES

Data = bytes | bytearray | memoryview


class Sender:
    """Sends responses within the peer's windows. Confined to: one connection.

    Attributes:
        window: Bytes that the peer takes on all streams together.
        initial_window: Bytes that a new stream may send (the peer's SETTINGS_INITIAL_WINDOW_SIZE).
        frame_bytes: Payload of the largest frame to send.
        data_frames: DATA frames sent, each of which may cause a WINDOW_UPDATE: without the short frames that a tiny window makes of
            larger data.
        queue: Streams whose data waits, in their turn; those that were reset meanwhile included.
        drained: Streams whose waiting data was sent since `take_drained`.
    """

    __slots__ = (
        "_granted",
        "_is_tableless",
        "_most_output",
        "_most_sent_frame",
        "_most_waiting",
        "_notice",
        "_output",
        "_streams",
        "_table",
        "data_frames",
        "drained",
        "frame_bytes",
        "initial_window",
        "queue",
        "window",
    )

    def __init__(self, output: Output, table: StreamTable, limits: H2Limits) -> None:
        self._output = output
        self._table = table
        self._streams = table.open
        self.queue: deque[Stream] = deque()
        self._most_output = limits.output_bytes
        self._most_waiting = limits.stream_queue_bytes
        self._most_sent_frame = limits.sent_frame_bytes
        #: The beginning of the next header block: a table size update that the peer has asked for.
        self._notice = b""
        self._is_tableless = False
        self.window = DEFAULT_WINDOW_BYTES
        self._granted = DEFAULT_WINDOW_BYTES
        self.initial_window = DEFAULT_WINDOW_BYTES
        self.frame_bytes = min(DEFAULT_FRAME_BYTES, limits.sent_frame_bytes)
        self.data_frames = 0
        self.drained: list[int] = []

    @property
    def can_move(self) -> bool:
        """Whether data that waits could be sent now."""
        return self.window > 0 and bool(self.queue)

    @property
    def sent_bytes(self) -> int:
        """Bytes of DATA sent so far."""
        return self._granted - self.window

    def headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.is_ending:
            raise MisuseError(f"stream {stream_id}: headers behind the end of the response")
        if stream.has_responded and not end_stream:
            raise MisuseError(f"stream {stream_id}: a second header block must end the response")
        if stream.waiting:
            stream.trailers = block
            stream.is_ending = True
        else:
            self._emit_block(stream, block, end_stream)

    def data(self, stream_id: int, data: Data, end_stream: bool) -> int:
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        if stream.is_ending or not stream.has_responded:
            raise MisuseError(
                f"stream {stream_id}: data {'behind the end of' if stream.is_ending else 'before the headers of'} the response"
            )
        length = len(data) if type(data) is bytes else memoryview(data).nbytes
        if not stream.waiting:
            if not length:
                if end_stream:
                    self._emit_data(stream, b"", 0, True)
                return 0
            if length <= self.frame_bytes and self._fits(stream, length):
                self.data_frames += 1
                self._emit_data(stream, data if type(data) is bytes else memoryview(data).cast("B"), length, end_stream)
                return 0
            stream.waiting = deque()
        elif stream.waiting_bytes > self._most_waiting:
            raise MisuseError(f"stream {stream_id}: {stream.waiting_bytes} bytes wait already")
        if length:
            stream.waiting.append(memoryview(data).cast("B"))
            stream.waiting_bytes += length
        stream.is_ending = end_stream
        self._list(stream)
        return stream.waiting_bytes

    def pieces(self, stream_id: int, pieces: Sequence[Data]) -> int:
        """See `ServerConnection.send_pieces`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        for piece in pieces:
            if not stream.waiting:
                self.data(stream_id, piece, False)
            elif len(piece):
                # They are one response, so that their sum is not bounded here.
                view = memoryview(piece).cast("B")
                stream.waiting.append(view)
                stream.waiting_bytes += len(view)
        return stream.waiting_bytes

    def respond(self, stream_id: int, block: bytes, data: bytes, trailers: bytes) -> int:
        """Sends a whole response in one call: header block, data, and the header block of the trailers that end it.

        Returns:
            How many bytes of the stream wait.

        Raises:
            MisuseError: the response has begun already.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        length, block_bytes, trailers_bytes = len(data), len(block), len(trailers)
        output = self._output
        if (
            self._notice
            or stream.has_responded
            or length > self.frame_bytes
            # As `_fits`, without the call.
            or length > stream.send_window
            or length > (self.window - _KEPT_FOR_WAITING_BYTES if self.queue else self.window)
            or output.size >= self._most_output
            or block_bytes > DEFAULT_FRAME_BYTES
            or trailers_bytes > DEFAULT_FRAME_BYTES
        ):
            self.headers(stream_id, block, False)
            self.data(stream_id, data, False)
            self.headers(stream_id, trailers, True)
            return stream.waiting_bytes
        self.window -= length
        stream.send_window -= length
        self.data_frames += 1
        output.pieces += (
            _pack(block_bytes << 8 | HEADERS, FLAG_END_HEADERS, stream_id),
            block,
            _pack(length << 8, 0, stream_id),
            data,
            _pack(trailers_bytes << 8 | HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream_id),
            trailers,
        )
        output.size += length + block_bytes + trailers_bytes
        stream.has_responded = stream.is_ending = True
        stream.state = after = NEXT[stream.state][_SEND_HEADERS_END]
        if after is _CLOSED:
            self._table.close(stream)
        elif stream.is_abandoned:
            self.reset(stream, ErrorCode.NO_ERROR)
        return 0

    def abandon(self, stream: Stream) -> None:
        """Resets a stream with NO_ERROR as soon as its whole response is in the output."""
        stream.is_abandoned = True
        if stream.state is _HALF_CLOSED_LOCAL:
            self.reset(stream, ErrorCode.NO_ERROR)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Ends a stream at once; data that waits on it is dropped."""
        self._output.control(frames.rst_stream(stream.id, code))
        self._table.remember_reset(stream.id)
        self._table.close(stream)

    def move(self) -> None:
        """Moves waiting data to the output, the streams in turn, until the output is full or the window is empty."""
        output = self._output
        queue = self.queue
        while queue and self.window > 0:
            stream = queue.popleft()
            stream.is_listed = False
            self._move_frame(stream)
            if output.size >= self._most_output:
                return

    def enlarge(self, increment: int) -> None:
        """The peer's WINDOW_UPDATE for the connection."""
        self.window += increment
        self._granted += increment
        if self.window > MOST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"the connection's window grows above {MOST_WINDOW_BYTES}")

    def enlarge_stream(self, stream: Stream, increment: int) -> None:
        """The peer's WINDOW_UPDATE for a stream."""
        stream.send_window += increment
        if stream.send_window > MOST_WINDOW_BYTES:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR, f"the window grows above {MOST_WINDOW_BYTES}")
        if stream.waiting:
            self._list(stream)

    def set_initial_window(self, window_bytes: int) -> None:
        """The peer's SETTINGS_INITIAL_WINDOW_SIZE, which changes the windows of open streams too (RFC 9113, section 6.9.2)."""
        change = window_bytes - self.initial_window
        if not change:
            return
        self.initial_window = window_bytes
        for stream in self._streams.values():
            stream.send_window += change
            if stream.send_window > MOST_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE takes a window above {MOST_WINDOW_BYTES}")
            if change > 0:
                self._list(stream)

    def set_frame_bytes(self, frame_bytes: int) -> None:
        """The peer's SETTINGS_MAX_FRAME_SIZE."""
        self.frame_bytes = min(frame_bytes, self._most_sent_frame)

    def set_table_bytes(self, table_bytes: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE. The next block must acknowledge a smaller table; the server then says zero, once."""
        if table_bytes < frames.DEFAULT_TABLE_BYTES and not self._is_tableless:
            self._is_tableless = True
            self._notice = NO_TABLE

    def _fits(self, stream: Stream, length: int) -> bool:
        if length > stream.send_window or self._output.size >= self._most_output:
            return False
        return length <= (self.window - _KEPT_FOR_WAITING_BYTES if self.queue else self.window)

    def _list(self, stream: Stream) -> None:
        if stream.waiting and not stream.is_listed and stream.send_window > 0:
            stream.is_listed = True
            queue = self.queue
            if len(queue) > 2 * len(self._streams) + _LISTED_SLACK:
                # Streams that were reset while they were in the queue: with an empty window, nothing else would remove them.
                alive = [listed for listed in queue if listed.waiting]
                queue.clear()
                queue.extend(alive)
            queue.append(stream)

    def _move_frame(self, stream: Stream) -> None:
        """Sends one frame of a stream's waiting data, and the trailers behind the last."""
        waiting = stream.waiting
        available = min(self.frame_bytes, self.window, stream.send_window)
        if not waiting or available <= 0:
            return
        piece = waiting[0]
        if len(piece) > available:
            waiting[0] = piece[available:]
            piece = piece[:available]
            self.data_frames += available >= _SHORT_FRAME_BYTES
        else:
            waiting.popleft()
            self.data_frames += 1
        stream.waiting_bytes -= len(piece)
        self._emit_data(stream, piece, len(piece), stream.is_ending and not waiting and stream.trailers is None)
        if waiting:
            self._list(stream)
            return
        self.drained.append(stream.id)
        if stream.trailers is not None:
            self._emit_block(stream, stream.trailers, True)

    def _emit_data(self, stream: Stream, data: bytes | memoryview, length: int, end_stream: bool) -> None:
        self.window -= length
        stream.send_window -= length
        output = self._output
        output.pieces.append(_pack(length << 8 | DATA, end_stream, stream.id))
        if length:
            output.pieces.append(data)
        output.size += length + frames.HEADER_BYTES
        self._step(stream, _SEND_DATA_END if end_stream else _SEND_DATA)

    def _emit_block(self, stream: Stream, block: bytes, end_stream: bool) -> None:
        if self._notice:
            block = self._notice + block
            self._notice = b""
        first, rest = block[:DEFAULT_FRAME_BYTES], block[DEFAULT_FRAME_BYTES:]
        pieces = self._output.pieces
        pieces.append(_pack(len(first) << 8 | HEADERS, end_stream | (0 if rest else FLAG_END_HEADERS), stream.id))
        pieces.append(first)
        while rest:
            first, rest = rest[:DEFAULT_FRAME_BYTES], rest[DEFAULT_FRAME_BYTES:]
            pieces.append(_pack(len(first) << 8 | CONTINUATION, 0 if rest else FLAG_END_HEADERS, stream.id))
            pieces.append(first)
        self._output.size += len(block) + frames.HEADER_BYTES
        stream.has_responded = True
        self._step(stream, _SEND_HEADERS_END if end_stream else _SEND_HEADERS)

    def _step(self, stream: Stream, step: Step) -> None:
        after = NEXT[stream.state][step]
        if after is _MISUSE:
            raise MisuseError(f"stream {stream.id}: {step.name} in state {stream.state.name}")
        stream.state = after
        if step is _SEND_HEADERS_END or step is _SEND_DATA_END:
            stream.is_ending = True
        if after is _CLOSED:
            self._table.close(stream)
        elif after is _HALF_CLOSED_LOCAL and stream.is_abandoned:
            self.reset(stream, ErrorCode.NO_ERROR)
