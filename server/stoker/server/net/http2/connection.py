"""The server's end of one HTTP/2 connection (RFC 9113), without input or output: bytes in, events out; responses in, bytes out.

It has no socket, clock or event loop. The transport calls `receive` with the bytes of one read, handles the events, and then writes
`data_to_send` once. Nothing that a peer sends raises an exception: a broken rule ends the stream or the connection with the error code of
RFC 9113. `README.md` beside this package has the theory of operation.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from stoker.server.net.http2 import frames
from stoker.server.net.http2.common_blocks import CommonBlocks
from stoker.server.net.http2.data_frames import DataFrames
from stoker.server.net.http2.events import ConnectionEnded, Event
from stoker.server.net.http2.frames import SETTINGS, ConnectionFault, ErrorCode
from stoker.server.net.http2.header_frames import HeaderFrames
from stoker.server.net.http2.inbound import ANY, DRAIN_PING, FloodGuard, Inbound
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.receive import ControlFrames, FrameReader
from stoker.server.net.http2.send import Data, Output, Sender
from stoker.server.net.http2.streams import Inflow, StreamTable

Read = TypeVar("Read", bytes | memoryview, memoryview)


class StreamStatistics(NamedTuple):
    """The receive window of one open stream, in bytes.

    Attributes:
        receive_window_bytes: Bytes that the peer may still send.
        pending_update_bytes: Bytes given back that no WINDOW_UPDATE has reported.
        unconsumed_bytes: Received bytes that the application has not given back.
    """

    receive_window_bytes: int
    pending_update_bytes: int
    unconsumed_bytes: int


class ConnectionStatistics(NamedTuple):
    """The sizes of what one connection holds.

    Attributes:
        receive_window_bytes: Bytes that the peer may still send on all streams together.
        pending_update_bytes: Bytes given back that no WINDOW_UPDATE has reported.
        send_window_bytes: Bytes that the server may still send on all streams together.
        queued_streams: Streams in the queue for sending, those that were reset meanwhile included.
        output_pieces: Pieces of frames that wait for `data_to_send`.
        frame_parts: Pieces of an incomplete frame.
        cached_blocks: Decoded header blocks in the cache.
        dynamic_table_entries: Fields in the HPACK table that the peer fills.
        streams: Open streams by id.
    """

    receive_window_bytes: int
    pending_update_bytes: int
    send_window_bytes: int
    queued_streams: int
    output_pieces: int
    frame_parts: int
    cached_blocks: int
    dynamic_table_entries: int
    streams: dict[int, StreamStatistics]


class ServerConnection:
    """The server's end of a connection with prior knowledge or by ALPN. Confined to: the owner of the transport.

    Responses to streams that are gone are dropped. A call that the protocol does not allow raises `MisuseError`: a second end of a
    response, data before its headers.

    >>> from stoker.server.net.http2 import H2Limits, RequestStarted, ServerConnection, encode_block
    >>> from stoker.server.net.http2.frames import FLAG_END_HEADERS, FLAG_END_STREAM, HEADERS, PREFACE, frame, settings_frame
    >>> connection = ServerConnection(H2Limits(), now_s=0.0)
    >>> fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/ready"), (b":authority", b"host")]
    >>> request = frame(HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, 1, encode_block(fields))
    >>> (event,) = connection.receive(PREFACE + settings_frame([]) + request, now_s=0.0)
    >>> event.stream_id, dict(event.headers)[b":path"], event.end_stream
    (1, b'/ready', True)
    >>> connection.send_headers(1, encode_block([(b":status", b"200")]))
    >>> connection.send_data(1, b"yes", end_stream=True)  # bytes that wait for the peer's windows
    0
    >>> written = b"".join(connection.data_to_send())
    >>> written.endswith(b"yes"), connection.open_streams
    (True, 0)
    """

    def __init__(self, limits: H2Limits, now_s: float, common: CommonBlocks | None = None) -> None:
        """Puts the server's SETTINGS into the output.

        Args:
            limits: Bounds of the connection.
            now_s: Monotonic time in seconds, as in `receive`.
            common: Decoded header blocks that connections with the same limits share; None: this one shares none.
        """
        self._output = Output(limits.control_frames_waiting)
        self._output.control(
            frames.settings_frame(
                (
                    (frames.SETTING_HEADER_TABLE_SIZE, limits.header_table_bytes),
                    (frames.SETTING_MAX_CONCURRENT_STREAMS, limits.concurrent_streams),
                    (frames.SETTING_INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
                    (frames.SETTING_MAX_FRAME_SIZE, limits.frame_bytes),
                    (frames.SETTING_MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
                )
            )
        )
        inflow = Inflow(self._output.control, limits.connection_window_bytes)
        self._table = StreamTable(inflow, limits)
        self._sender = Sender(self._output, self._table, limits)
        #: A whole response in one call: `Sender.respond`.
        self.send_response = self._sender.respond
        guard = FloodGuard(limits, self._table, self._sender, inflow, now_s)
        self._inbound = Inbound(guard, self._output, self._table, now_s)
        self._data_frames = DataFrames(limits, self._inbound, self._output, self._table, inflow)
        self._header_frames = HeaderFrames(limits, self._inbound, self._table, self._sender, CommonBlocks() if common is None else common)
        self._control = ControlFrames(self._inbound, self._output, self._table, self._sender, self._header_frames)
        self._reader = FrameReader(limits, self._inbound, self._data_frames, self._header_frames, self._control)
        self._is_over = False

    # ---- receiving

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Event]:
        """Takes bytes of the peer that were read at `now_s` (monotonic, seconds), and returns their events. Never raises.

        `data` as a memoryview may be overwritten once this returns; events never hold it.
        """
        return self._received(self._reader.read, data, now_s)

    def _received(self, read: Callable[[Read], None], data: Read, now_s: float) -> list[Event]:
        if self._is_over:
            return []
        inbound = self._inbound
        inbound.now_s = now_s
        events: list[Event] = []
        inbound.events = events
        try:
            read(data)
        except ConnectionFault as fault:
            debug = fault.text.encode()
            self._data_frames.report_all_written()
            self.close(fault.code, debug)
            events.append(ConnectionEnded(fault.code, debug))
        return events

    def set_receive_buffer(self, stream_id: int, receive_buffer: memoryview, size_bytes: int | None = None) -> None:
        """Writes the next `size_bytes` of a request (None: as many as it holds) into `receive_buffer` instead of separate events.
        `DataWritten` reports how many: at steps of at most 128 KiB, at the end, and for the remainder when `report_written` is called.

        Bytes after them arrive as `DataReceived` again. Memory behind them is used for the headers of frames, so that one read may take
        the whole message. REQUIRES: all events that `receive` has returned are handled.
        """
        self._data_frames.set_receive_buffer(stream_id, receive_buffer, len(receive_buffer) if size_bytes is None else size_bytes)

    def receive_buffer(self, likely_stream_id: int = 0) -> memoryview | None:
        """The buffer that the transport may read into next, for `receive_zero_copy`: that of the request whose DATA frame is incomplete,
        or between frames that of `likely_stream_id`, whose frame is likely the next.

        None: the next read must go to `receive`.
        """
        return None if self._is_over else self._reader.receive_buffer(likely_stream_id)

    def receive_zero_copy(self, data: memoryview, now_s: float) -> list[Event]:
        """As `receive`, for bytes that were read into `receive_buffer`. REQUIRES: nothing was received in between."""
        return self._received(self._reader.read_zero_copy, data, now_s)

    def report_written(self, now_s: float) -> list[Event]:
        """Events for the bytes in receive buffers that were not reported yet."""

        def report(_: bytes | memoryview) -> None:
            self._data_frames.report_all_written()

        return self._received(report, b"", now_s)

    def consumed(self, stream_id: int, count: int) -> None:
        """Gives `count` bytes of window back to the peer: the application is done with as many of `DataReceived` or `DataWritten`.

        Window that was not given back when a stream closes is given back then.
        """
        self._data_frames.consumed(stream_id, count)

    def hold_back(self, stream_id: int, *, is_held_back: bool) -> None:
        """Withholds the stream's window from the peer, which then sends at most the rest of it; or gives it back again.

        `consumed` still gives back the connection's window, so that other streams go on.
        """
        self._data_frames.hold_back(stream_id, is_held_back=is_held_back)

    # ---- sending

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Sends a header block (`encode_block`): the response's, or with `end_stream` its trailers, behind the data that waits.

        Raises:
            MisuseError: the response has ended, or has begun and this does not end it.
        """
        self._sender.headers(stream_id, block, end_stream)

    def send_data(self, stream_id: int, data: Data, *, end_stream: bool = False) -> int:
        """Sends data; the part that does not fit the windows waits, by reference.

        Returns:
            How many bytes of the stream wait. More should be sent only when `take_drained` has named the stream.

        Raises:
            MisuseError: the response has ended or not begun, or more than `stream_queue_bytes` wait.
        """
        return self._sender.data(stream_id, data, end_stream)

    def send_pieces(self, stream_id: int, pieces: Sequence[Data]) -> int:
        """As `send_data`, for large data in pieces, which wait together."""
        return self._sender.pieces(stream_id, pieces)

    def reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Ends a stream at once; data that waits on it is dropped."""
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self._sender.reset(stream, code)

    def abandon_request(self, stream_id: int) -> None:
        """Resets the stream with NO_ERROR once the response is out, waiting data included (RFC 9113, section 8.1): the application wants
        no more of the request. No effect on a request that is complete by then.
        """
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self._sender.abandon(stream)

    def ping(self, payload: bytes) -> None:
        """Sends a PING of eight bytes; its acknowledgement is the event `PingAcked`."""
        if len(payload) != 8:
            raise ValueError(f"a PING carries 8 bytes, not {len(payload)}")
        self._control.pings_out += 1
        self._output.control(frames.frame(frames.PING, 0, 0, payload))

    def drain(self) -> None:
        """Begins a graceful end: asks the peer to open no more streams.

        Streams that the peer opens before it has read that are still served. The second GOAWAY, which names the last stream, follows the
        acknowledgement of a PING (RFC 9113, section 6.8) or `finish_drain`. The connection is finished when the open streams are.
        """
        if not self._is_over and not (self._control.is_draining or self._inbound.is_refusing):
            self._control.is_draining = True
            self._output.control(frames.goaway(frames.MOST_STREAM_ID, ErrorCode.NO_ERROR, b""))
            self._output.control(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def refuse(self, code: ErrorCode, debug: bytes) -> None:
        """Refuses new streams from now on and lets the open ones end; `debug` is the reason for the peer.

        The connection is finished when the open streams are and the peer has acknowledged a PING that follows, or by `finish_drain`: by
        then the peer has read which stream was the last.
        """
        if not self._is_over and not self._inbound.is_refusing:
            self._inbound.refuse_at_once(code, debug)

    def finish_drain(self) -> None:
        """Names the last stream and refuses later ones, without waiting for the peer's acknowledgement."""
        if not self._is_over:
            self._inbound.refuse_new()
            self._inbound.is_lingering = False

    def close(self, code: ErrorCode, debug: bytes = b"") -> None:
        """Ends the connection and all its streams; the output must still be written."""
        if not self._is_over:
            self._is_over = True
            self._inbound.go_away(code, debug)
            self._table.close_all()

    def data_to_send(self) -> list[bytes | memoryview]:
        """Takes the bytes to write now, about `output_bytes` at most; empty: nothing.

        REQUIRES: the transport has taken the bytes of the last call. While the transport is full the output bounds itself.
        """
        sender, output = self._sender, self._output
        if sender.queue and sender.window > 0:
            sender.move()
        pieces, output.pieces = output.pieces, []
        output.size = output.control_frames = 0
        return pieces

    def take_drained(self) -> list[int]:
        """Streams whose waiting data was sent completely since the last call."""
        sender = self._sender
        if not sender.drained:
            return []
        drained, sender.drained = sender.drained, []
        return drained

    # ---- state

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` would return bytes."""
        return bool(self._output.pieces) or self._sender.can_move

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to write, no drained stream to report, and no reason to close the transport."""
        sender, inbound = self._sender, self._inbound
        if self._output.pieces or sender.drained or self._is_over or (sender.queue and sender.window > 0):
            return False
        return not inbound.is_refusing or inbound.is_lingering or bool(self._table.open)

    @property
    def opened_streams(self) -> int:
        """Streams that were opened so far; refused ones do not count."""
        return self._table.opened

    @property
    def open_streams(self) -> int:
        """Streams that are not closed."""
        return len(self._table.open)

    @property
    def waiting_bytes(self) -> int:
        """Data of all streams that waits for the peer's windows or the transport. While it stays the same, the peer does not read."""
        return sum(stream.waiting_bytes for stream in self._table.open.values())

    @property
    def sent_data_frames(self) -> int:
        """DATA frames sent so far, without the short frames that a tiny window makes of larger data."""
        return self._sender.data_frames

    @property
    def is_finished(self) -> bool:
        """Whether only the output is left to write before the transport closes."""
        inbound = self._inbound
        return self._is_over or (inbound.is_refusing and not inbound.is_lingering and not self._table.open)

    @property
    def is_ready(self) -> bool:
        """Whether the peer's preface and SETTINGS have arrived."""
        return self._inbound.expected != SETTINGS

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame or header block has begun to arrive and is incomplete; DATA, which is handed on in parts, does not count."""
        return self._reader.has_part or self._inbound.expected not in (ANY, SETTINGS)

    @property
    def awaits_settings_ack(self) -> bool:
        """Whether the peer has not acknowledged our SETTINGS yet."""
        return self._control.awaits_ack

    def is_open(self, stream_id: int) -> bool:
        """Whether the connection would send a response on the stream."""
        stream = self._table.open.get(stream_id)
        return stream is not None and not stream.is_ending

    def statistics(self) -> ConnectionStatistics:
        """The sizes of what the connection holds now, for tests and diagnosis."""
        return ConnectionStatistics(
            receive_window_bytes=self._table.inflow.window,
            pending_update_bytes=self._table.inflow.pending_update_bytes,
            send_window_bytes=self._sender.window,
            queued_streams=len(self._sender.queue),
            output_pieces=len(self._output.pieces),
            frame_parts=self._reader.parts,
            cached_blocks=self._header_frames.decoder.cached_blocks,
            dynamic_table_entries=self._header_frames.decoder.table_entries,
            streams={
                stream_id: StreamStatistics(stream.receive_window, stream.pending_update, stream.unconsumed)
                for stream_id, stream in self._table.open.items()
            },
        )
