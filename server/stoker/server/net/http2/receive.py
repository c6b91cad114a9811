"""The receiving half: cuts the bytes into frames, and handles all frames but HEADERS, CONTINUATION and DATA.

DATA is handed on as it arrives, part by part, and so is neither collected nor copied here. All other frames wait until they are complete;
they are small, or their length alone rejects them. Frames of unknown types are skipped (RFC 9113, section 5.5).
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.data_frames import DataFrames
from stoker.server.net.http2.events import Flood, PeerLeaving, PingAcked, PingReceived, StreamReset
from stoker.server.net.http2.frames import (
    CONTINUATION,
    DATA,
    FLAG_ACK,
    FLAG_PADDED,
    FRAME_HEADER,
    HEADER_BYTES,
    HEADERS,
    PREFACE,
    SETTINGS,
    SETTINGS_ACK,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    read_settings,
)
from stoker.server.net.http2.header_frames import HeaderFrames
from stoker.server.net.http2.inbound import ANY, DRAIN_PING, Inbound
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.send import Output, Sender
from stoker.server.net.http2.streams import Step, StreamTable

_u32: Final = Struct(">I").unpack_from
_two_u32: Final = Struct(">II").unpack_from


class ControlFrames:
    """Handlers by frame type. Confined to: one connection.

    Attributes:
        is_draining: Whether the peer was asked to open no more streams.
        awaits_ack: Whether the peer has not acknowledged the server's SETTINGS.
        pings_out: PINGs of the server that the peer has not acknowledged.
    """

    __slots__ = (
        "_header_frames",
        "_inbound",
        "_output",
        "_sender",
        "_table",
        "awaits_ack",
        "is_draining",
        "pings_out",
    )

    def __init__(self, inbound: Inbound, output: Output, table: StreamTable, sender: Sender, header_frames: HeaderFrames) -> None:
        self._inbound = inbound
        self._output = output
        self._table = table
        self._sender = sender
        self._header_frames = header_frames
        self.is_draining = False
        self.awaits_ack = True
        self.pings_out = 0

    def _charge(self, what: str) -> None:
        self._inbound.charge(Flood.CONTROL, what)

    def priority(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Deprecated, and without effect (RFC 9113, section 5.3.2)."""
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY for stream 0")
        if end - start != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {end - start} bytes")
        self._charge("PRIORITY frames")

    def rst_stream(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {end - start} bytes")
        self._inbound.charge(Flood.RESETS, "RST_STREAM frames")
        stream = self._table.open.get(stream_id)
        if stream is None:
            self._inbound.check_crossed(stream_id, Step.RECEIVE_RST_STREAM)
            return
        self._inbound.report_written(stream)
        self._table.close(stream)
        self._inbound.events.append(StreamReset(stream_id, _u32(data, start)[0], False))

    def settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS for stream {stream_id}")
        if flags & FLAG_ACK:
            if end != start:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            if self._inbound.expected == SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame acknowledges SETTINGS")
            if self.awaits_ack:
                # The one that the peer owes is not charged.
                self.awaits_ack = False
                self._header_frames.settings_acked()
            else:
                self._charge("SETTINGS frames")
            return
        self._charge("SETTINGS frames")
        values = read_settings(data[start:end])
        self._inbound.expected = ANY
        if (table_bytes := values.get(frames.SETTING_HEADER_TABLE_SIZE)) is not None:
            self._sender.set_table_bytes(table_bytes)
        if (window_bytes := values.get(frames.SETTING_INITIAL_WINDOW_SIZE)) is not None:
            self._sender.set_initial_window(window_bytes)
        if (frame_bytes := values.get(frames.SETTING_MAX_FRAME_SIZE)) is not None:
            self._sender.set_frame_bytes(frame_bytes)
        self._output.reply(SETTINGS_ACK)

    def push_promise(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def ping(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"PING for stream {stream_id}")
        if end - start != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING of {end - start} bytes")
        inbound = self._inbound
        payload = data[start:end]
        if not flags & FLAG_ACK:
            self._charge("PING frames")
            self._output.reply(frames.frame(frames.PING, FLAG_ACK, 0, payload))
            inbound.events.append(PingReceived(payload))
            return
        if payload == DRAIN_PING and (self.is_draining or inbound.is_lingering):
            inbound.is_lingering = False
            inbound.refuse_new()
        elif self.pings_out:
            # The acknowledgement that the peer owes is not charged.
            self.pings_out -= 1
            inbound.events.append(PingAcked(payload))
        else:
            self._charge("PING frames")

    def goaway(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY for stream {stream_id}")
        if end - start < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {end - start} bytes")
        self._charge("GOAWAY frames")
        self._inbound.events.append(PeerLeaving(_two_u32(data, start)[1], data[start + 8 : end]))

    def window_update(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {end - start} bytes")
        inbound = self._inbound
        # Two of them come with each call: where the budget has any left, it is taken here.
        budget = inbound.control
        if budget.left >= 1.0:
            budget.left -= 1.0
        else:
            self._charge("WINDOW_UPDATE frames")
        # Declared, as `struct` declares Any.
        number: int = _u32(data, start)[0]
        increment = number & frames.MOST_WINDOW_BYTES
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._sender.enlarge(increment)
            return
        stream = self._table.open.get(stream_id)
        if stream is None:
            inbound.check_crossed(stream_id, Step.RECEIVE_WINDOW_UPDATE)
        elif not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        else:
            self._sender.enlarge_stream(stream, increment)

    def unknown(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Frames of other types are ignored (RFC 9113, section 5.5), within reason."""
        self._charge("frames of unknown types")


_unpack: Final = FRAME_HEADER.unpack_from
#: Index of the handler for types this server does not know.
_UNKNOWN: Final = 10
_SETTING_BYTES: Final = 6
#: Padding length, padding, and the deprecated priority fields (RFC 9113, section 6.2).
_HEADERS_EXTRA_BYTES: Final = 1 + 255 + 5
#: Debug data that a GOAWAY may carry.
_MOST_GOAWAY_BYTES: Final = 4096
#: Pieces of an incomplete frame: above it they are joined, so that a peer that sends single bytes does not cost an object for each.
_MOST_PARTS: Final = 64
_STREAM_ID: Final = 0x7FFF_FFFF
#: Bytes of a zero-copy read: below the minimum, a copy costs less than a read of its own; the kernel seldom has more than the maximum.
_MIN_BUFFER_BYTES: Final = 32 * 1024
_MAX_BUFFER_BYTES: Final = 1024 * 1024

#: (flags, stream id, data, start, end): the payload is `data[start:end]`. Only that of DATA may be given a view that is read into again.
_Handler = Callable[[int, int, Any, int, int], None]


class FrameReader:
    """Cuts bytes into frames, and calls the handler of each. Confined to: one connection."""

    __slots__ = (
        "_data_frames",
        "_handlers",
        "_have",
        "_inbound",
        "_left",
        "_longest",
        "_need",
        "_padding",
        "_parts",
        "_preface",
        "_stream_id",
    )

    def __init__(
        self, limits: H2Limits, inbound: Inbound, data_frames: DataFrames, header_frames: HeaderFrames, control: ControlFrames
    ) -> None:
        self._inbound = inbound
        self._data_frames = data_frames
        #: By frame type, unknown ones last. They raise `ConnectionFault` and `StreamFault`.
        self._handlers: tuple[_Handler, ...] = (
            *(data_frames.whole, header_frames.headers, control.priority, control.rst_stream, control.settings, control.push_promise),
            *(control.ping, control.goaway, control.window_update, header_frames.continuation, control.unknown),
        )
        most = limits.frame_bytes
        #: Longest payload by frame type, unknown ones last.
        self._longest: tuple[int, ...] = (
            most,
            min(most, limits.header_block_bytes + _HEADERS_EXTRA_BYTES),
            *(5, 4),
            min(most, limits.settings_count * _SETTING_BYTES),
            *(most, 8, _MOST_GOAWAY_BYTES, 4),
            min(most, limits.header_block_bytes),
            most,
        )
        self._preface = PREFACE
        #: An incomplete frame: its pieces, their size, and the size at which it can be handled.
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        #: A DATA frame that is handed on in parts: the bytes missing of its data, then of its padding. Skipped frames are all padding.
        self._left = 0
        self._padding = 0
        self._stream_id = 0

    @property
    def has_part(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self._parts)

    @property
    def parts(self) -> int:
        """Pieces of an incomplete frame."""
        return len(self._parts)

    def receive_buffer(self, likely_stream_id: int) -> memoryview | None:
        """The buffer of the request whose DATA frame is incomplete, or between frames that of `likely_stream_id`; None: it has none, or too
        little is left of it.
        """
        if not self._left:
            if self._parts or self._padding:
                return None
            self._stream_id = likely_stream_id
        receive_buffer = self._data_frames.receive_buffer(self._stream_id)
        return None if receive_buffer is None or len(receive_buffer) < _MIN_BUFFER_BYTES else receive_buffer[:_MAX_BUFFER_BYTES]

    def read_zero_copy(self, data: memoryview) -> None:
        """As `read`, for bytes that were read into `receive_buffer`.

        The bytes of the incomplete frame are in their place; those behind it begin with the next frame's header, and are read again.
        """
        count = self._data_frames.buffer_written(self._stream_id, len(data), self._left) if self._left else 0
        self._left -= count
        if count < len(data):
            self.read(data[count:])

    def read(self, data: bytes | memoryview) -> None:
        """Takes bytes. A view may be overwritten afterwards: kept bytes are copied.

        Raises:
            ConnectionFault: the peer broke a rule of the connection; nothing may be read after that.
        """
        if self._preface:
            data = self._read_preface(bytes(data))
        if self._parts:
            self._parts.append(bytes(data))
            self._have += len(data)
            if self._have < self._need:
                if len(self._parts) > _MOST_PARTS:
                    self._parts = [b"".join(self._parts)]
                return
            data = b"".join(self._parts)
            self._parts = []
        is_kept = type(data) is bytes
        size = len(data)
        position = self._resume(data, size) if self._left or self._padding else 0
        inbound = self._inbound
        handlers = self._handlers
        longest = self._longest
        need = HEADER_BYTES
        while size - position >= HEADER_BYTES:
            # Declared, as `struct` declares Any: compiled code then computes with plain integers.
            header: tuple[int, int, int] = _unpack(data, position)
            word, flags, stream_id = header
            kind = word & 0xFF
            if inbound.expected != ANY and kind != inbound.expected:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} where {_expected(inbound.expected)} was expected")
            if kind > _UNKNOWN:
                kind = _UNKNOWN
            length = word >> 8
            if length > longest[kind]:
                raise self._too_long(kind, length)
            start = position + HEADER_BYTES
            end = start + length
            if kind == DATA and not flags and end <= size:
                behind = self._data_frames.copy_frames(data, position, size)
                if behind > position:
                    position = behind
                    continue
            try:
                if end <= size:
                    if is_kept or kind == DATA:
                        handlers[kind](flags, stream_id & _STREAM_ID, data, start, end)
                    else:
                        handlers[kind](flags, stream_id & _STREAM_ID, bytes(data[start:end]), 0, length)
                elif kind != DATA and kind != _UNKNOWN:
                    need = HEADER_BYTES + length
                    break
                elif kind == DATA and flags & FLAG_PADDED and start == size:
                    need = HEADER_BYTES + 1
                    break
                else:
                    end = self._begin(kind, flags, stream_id & _STREAM_ID, data, start, length)
            except StreamFault as fault:
                inbound.fault(fault)
                if end > size:
                    # The stream has no use for the bytes that are still missing of the frame.
                    self._left, self._padding, end = 0, end - size, size
            position = end
        if position < size:
            self._parts = [bytes(data[position:])]
            self._have = size - position
            self._need = need

    def _read_preface(self, data: bytes) -> bytes:
        preface = self._preface
        if not (data.startswith(preface) if len(data) >= len(preface) else preface.startswith(data)):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
        self._preface = preface[len(data) :]
        return data[len(preface) :]

    def _begin(self, kind: int, flags: int, stream_id: int, data: bytes | memoryview, start: int, length: int) -> int:
        """Begins a frame that is longer than `data`; returns the position up to which all is used: the end of `data`."""
        size = len(data)
        if kind == _UNKNOWN:
            # Not `data`: compiled, the handler takes bytes alone.
            self._handlers[_UNKNOWN](flags, stream_id, b"", 0, 0)
            self._padding = start + length - size
            return size
        payload, padding = length, 0
        if flags & FLAG_PADDED:
            padding = data[start]
            payload -= 1 + padding
            start += 1
        self._data_frames.begin(flags, stream_id, length, payload)
        self._left, self._padding, self._stream_id = payload, padding, stream_id
        if payload == 0:
            self._data_frames.part(stream_id, data, start, start, True)
        return self._resume(data, size, start)

    def _resume(self, data: bytes | memoryview, size: int, position: int = 0) -> int:
        """Hands on the bytes of the incomplete frame; returns the position behind them."""
        if self._left and position < size:
            end = min(size, position + self._left)
            self._left -= end - position
            self._data_frames.part(self._stream_id, data, position, end, self._left == 0)
            position = end
        if not self._left:
            end = min(size, position + self._padding)
            self._padding -= end - position
            position = end
        return position

    def _too_long(self, kind: int, length: int) -> ConnectionFault:
        most = self._longest[kind]
        is_ours = most < self._longest[DATA] and kind in (HEADERS, CONTINUATION, SETTINGS)
        return ConnectionFault(
            ErrorCode.ENHANCE_YOUR_CALM if is_ours and length <= self._longest[DATA] else ErrorCode.FRAME_SIZE_ERROR,
            f"a frame of type {kind} with {length} bytes of payload, where at most {most} are taken",
        )


def _expected(kind: int) -> str:
    return "SETTINGS" if kind == SETTINGS else "CONTINUATION"
