"""One HTTP/2 connection, seen from the server (RFC 9113): bytes in, events out; answers in, bytes out.

No socket, clock or event loop: what carries the bytes calls `receive`, acts on the events, and writes what `data_to_send` gives, once
for all that a read has brought. Nothing a peer sends raises; a rule it breaks ends its stream or the connection, with the error code that
RFC 9113 asks for.
"""

from collections.abc import Callable
from typing import TypeVar

from stoker.server.net.http2 import frames
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


class ServerConnection:
    """The server's end of a connection with prior knowledge or by ALPN. Confined to: whoever owns the transport.

    Answers to streams that are gone are dropped. What the protocol does not allow raises `MisuseError`: a second end, data before headers.
    """

    def __init__(self, limits: H2Limits, now_s: float) -> None:
        """Puts our SETTINGS into the output. `now_s`: monotonic time, as in `receive`."""
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
        #: A whole answer in one call: `Sender.respond`, without a method around it.
        self.send_response = self._sender.respond
        guard = FloodGuard(limits, self._table, self._sender, inflow, now_s)
        self._inbound = Inbound(guard, self._output, self._table, now_s)
        self._data_frames = DataFrames(limits, self._inbound, self._output, self._table, inflow)
        header_frames = HeaderFrames(limits, self._inbound, self._table, self._sender)
        self._control = ControlFrames(self._inbound, self._output, self._table, self._sender, header_frames)
        self._reader = FrameReader(limits, self._inbound, self._data_frames, header_frames, self._control)
        self._is_over = False

    # ---- receiving

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Event]:
        """Takes in what the peer sent, at the time `now_s` (monotonic, seconds), and tells what it means. Never raises.

        `data` as a memoryview may be written over once this returns; events never hold it.
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

    def set_receive_buffer(self, stream_id: int, receive_buffer: memoryview) -> None:
        """Writes the next bytes of a request into `receive_buffer` instead of events of their own. `DataWritten` reports how far it is
        filled: at steps of at most 128 KiB, at the end, and for the remainder when `report_written` is called.

        What comes when it is full comes as `DataReceived` again. REQUIRES: all events that `receive` has given are handled.
        """
        self._data_frames.set_receive_buffer(stream_id, receive_buffer)

    def receive_buffer(self) -> memoryview | None:
        """Where the transport may put what it reads next, for `receive_zero_copy`: the place of the message whose DATA frame is in hand."""
        return None if self._is_over else self._reader.receive_buffer()

    def receive_zero_copy(self, data: memoryview, now_s: float) -> list[Event]:
        """As `receive`, of what was read to where `receive_buffer` said, with nothing received in between."""
        return self._received(self._reader.read_zero_copy, data, now_s)

    def report_written(self, now_s: float) -> list[Event]:
        """Tells what stands in its place and was not told of yet."""

        def tell(_: bytes | memoryview) -> None:
            self._data_frames.report_all_written()

        return self._received(tell, b"", now_s)

    def consumed(self, stream_id: int, count: int) -> None:
        """The application is done with `count` bytes of `DataReceived` or `DataWritten`: the peer may send as many more.

        What was not given back when a stream closes goes back by itself.
        """
        self._data_frames.consumed(stream_id, count)

    # ---- sending

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Sends a header block (`encode_block`): the answer's, or with `end_stream` its trailers, behind the data that waits.

        Raises:
            MisuseError: the answer has ended, or has begun and this does not end it.
        """
        self._sender.headers(stream_id, block, end_stream)

    def send_data(self, stream_id: int, data: Data, *, end_stream: bool = False) -> int:
        """Sends data; keeps what does not fit the windows, by reference.

        Returns:
            How many bytes of the stream wait. More should be sent only when `take_drained` has named the stream.

        Raises:
            MisuseError: the answer has ended or not begun, or more waits than `stream_queue_bytes`.
        """
        return self._sender.data(stream_id, data, end_stream)

    def reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Ends a stream at once; what waits on it is dropped."""
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self._sender.reset(stream, code)

    def abandon_request(self, stream_id: int) -> None:
        """What the request still sends is not wanted: once the answer is out, waiting data included, the stream is reset with NO_ERROR
        (RFC 9113, section 8.1). No effect on a request that is complete by then.
        """
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self._sender.abandon(stream)

    def ping(self, payload: bytes) -> None:
        """Sends a PING of eight bytes; `PingAcked` answers it."""
        if len(payload) != 8:
            raise ValueError(f"a PING carries 8 bytes, not {len(payload)}")
        self._control.pings_out += 1
        self._output.control(frames.frame(frames.PING, 0, 0, payload))

    def drain(self) -> None:
        """Lets the connection end gracefully: asks the peer to open no more streams.

        What it opens until it has heard of that is still served: the last stream is named with the answer to a PING that follows
        (RFC 9113, section 6.8), or by `finish_drain`. The connection is finished when the open streams are.
        """
        if not self._is_over and not (self._control.is_draining or self._inbound.is_refusing):
            self._control.is_draining = True
            self._output.control(frames.goaway(frames.MOST_STREAM_ID, ErrorCode.NO_ERROR, b""))
            self._output.control(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def refuse(self, code: ErrorCode, debug: bytes) -> None:
        """Refuses new streams from now on and lets the open ones end; `debug` tells the peer why.

        The connection is finished when they are and the peer has answered a PING that follows, or by `finish_drain`: so the peer has read
        which was the last stream.
        """
        if not self._is_over and not self._inbound.is_refusing:
            self._inbound.refuse_at_once(code, debug)

    def finish_drain(self) -> None:
        """Names the last stream; later ones are refused, and the peer's answer is no longer waited for."""
        if not self._is_over:
            self._inbound.refuse_new()
            self._inbound.is_lingering = False

    def close(self, code: ErrorCode, debug: bytes = b"") -> None:
        """Ends the connection and all its streams; what is in the output is still to be written."""
        if not self._is_over:
            self._is_over = True
            self._inbound.go_away(code, debug)
            self._table.close_all()

    def data_to_send(self) -> list[bytes | memoryview]:
        """Takes what is to be written now, about `output_bytes` at most; empty: nothing.

        To be called again once that is written. Not to be called while the transport is full: the output then bounds itself.
        """
        if self._sender.can_move:
            self._sender.move()
        return self._output.take()

    def take_drained(self) -> list[int]:
        """Streams whose waiting data has all gone out since the last call."""
        sender = self._sender
        if not sender.drained:
            return []
        drained, sender.drained = sender.drained, []
        return drained

    # ---- state

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` would give something."""
        return bool(self._output.pieces) or self._sender.can_move

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to write now, nothing to tell of what was written, and no reason to close the transport."""
        sender = self._sender
        return not (self._output.pieces or sender.drained or sender.can_move or self.is_finished)

    @property
    def opened_streams(self) -> int:
        """Streams that were opened so far, those that were refused not among them."""
        return self._table.opened

    @property
    def open_streams(self) -> int:
        """Streams that are not closed."""
        return len(self._table.open)

    @property
    def waiting_bytes(self) -> int:
        """Data of all streams that waits for the peer's windows or for room: if it stays the same for long, the peer does not read."""
        return sum(stream.waiting_bytes for stream in self._table.open.values())

    @property
    def sent_data_frames(self) -> int:
        """DATA frames sent so far, but for the crumbs that a tiny window makes of larger data."""
        return self._sender.data_frames

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do but to write the output and to close the transport."""
        inbound = self._inbound
        return self._is_over or (inbound.is_refusing and not inbound.is_lingering and not self._table.open)

    @property
    def is_ready(self) -> bool:
        """Whether the peer's preface and SETTINGS have come."""
        return self._inbound.expected != SETTINGS

    @property
    def is_mid_frame(self) -> bool:
        """Whether the beginning of a frame or header block has come, and not its end; DATA, which is handed on in parts, does not count."""
        return self._reader.has_part or self._inbound.expected not in (ANY, SETTINGS)

    @property
    def awaits_settings_ack(self) -> bool:
        """Whether the peer has not acknowledged our SETTINGS yet."""
        return self._control.awaits_ack

    def is_open(self, stream_id: int) -> bool:
        """Whether an answer on the stream would still go anywhere."""
        stream = self._table.open.get(stream_id)
        return stream is not None and not stream.is_ending
