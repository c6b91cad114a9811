"""All frames but HEADERS, CONTINUATION and DATA (RFC 9113, sections 6.3 to 6.9)."""

from struct import Struct
from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.budgets import Flood
from stoker.server.net.http2.error_codes import ErrorCode
from stoker.server.net.http2.events import PeerLeaving, PingAcked, PingReceived, StreamReset
from stoker.server.net.http2.faults import ConnectionFault, StreamFault
from stoker.server.net.http2.frames import FLAG_ACK, SETTINGS, SETTINGS_ACK
from stoker.server.net.http2.header_frames import HeaderFrames
from stoker.server.net.http2.inbound import ANY, DRAIN_PING, Inbound
from stoker.server.net.http2.output import Output
from stoker.server.net.http2.sender import Sender
from stoker.server.net.http2.settings import read_settings
from stoker.server.net.http2.stream_states import Step
from stoker.server.net.http2.streams import StreamTable

_u32: Final = Struct(">I").unpack_from
_two_u32: Final = Struct(">II").unpack_from


class ControlFrames:
    """Handlers by frame type. Confined to: one connection.

    Attributes:
        is_draining: The peer was asked to open no more streams.
        awaits_ack: The peer has not acknowledged our SETTINGS.
        pings_out: PINGs of ours that the peer has not acknowledged.
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
            # An answer that the peer owes is not charged.
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
        self._charge("WINDOW_UPDATE frames")
        increment = _u32(data, start)[0] & frames.MOST_WINDOW_BYTES
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
