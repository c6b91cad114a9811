"""All frames but HEADERS, CONTINUATION and DATA (RFC 9113, sections 6.3 to 6.9)."""

from struct import Struct
from typing import Final

from server.frontends.h2 import frames
from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import PeerLeaving, PingAcked, PingReceived, StreamReset
from server.frontends.h2.faults import ConnectionFault, StreamFault
from server.frontends.h2.frames import FLAG_ACK, SETTINGS, SETTINGS_ACK
from server.frontends.h2.header_frames import HeaderFrames
from server.frontends.h2.inbound import ANY, Inbound
from server.frontends.h2.limits import H2Limits
from server.frontends.h2.output import Output
from server.frontends.h2.sender import Sender
from server.frontends.h2.settings import read_settings
from server.frontends.h2.stream_states import Step
from server.frontends.h2.streams import StreamTable

#: Payload of the PING that goes with the first GOAWAY of a graceful end.
DRAIN_PING: Final = b"draining"

_u32: Final = Struct(">I").unpack_from
_two_u32: Final = Struct(">II").unpack_from


class ControlFrames:
    """Handlers by frame type. Confined to: one connection.

    Attributes:
        is_draining: The peer was asked to open no more streams.
        awaits_ack: The peer has not acknowledged our SETTINGS.
    """

    __slots__ = (
        "_header_frames",
        "_inbound",
        "_output",
        "_paid_frames",
        "_sender",
        "_table",
        "_updates_per_frame",
        "awaits_ack",
        "is_draining",
    )

    def __init__(
        self, limits: H2Limits, inbound: Inbound, output: Output, table: StreamTable, sender: Sender, header_frames: HeaderFrames
    ) -> None:
        self._inbound = inbound
        self._output = output
        self._table = table
        self._sender = sender
        self._header_frames = header_frames
        self._updates_per_frame = limits.updates_per_frame
        #: DATA frames sent that the budget of WINDOW_UPDATE has been raised for.
        self._paid_frames = 0
        self.is_draining = False
        self.awaits_ack = True

    def _charge(self, what: str) -> None:
        self._inbound.charge(self._inbound.control, what)

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
        self._inbound.charge(self._inbound.resets, "RST_STREAM frames")
        stream = self._table.open.get(stream_id)
        if stream is None:
            self._inbound.check_crossed(stream_id, Step.RECEIVE_RST_STREAM)
            return
        self._inbound.tell_placed(stream)
        self._table.close(stream)
        self._inbound.events.append(StreamReset(stream_id, _u32(data, start)[0], False))

    def settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS for stream {stream_id}")
        self._charge("SETTINGS frames")
        if flags & FLAG_ACK:
            if end != start:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            if self._inbound.expected == SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame acknowledges SETTINGS")
            if self.awaits_ack:
                self.awaits_ack = False
                self._header_frames.settings_acked()
            return
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
        self._charge("PING frames")
        payload = data[start:end]
        if not flags & FLAG_ACK:
            self._output.reply(frames.frame(frames.PING, FLAG_ACK, 0, payload))
            self._inbound.events.append(PingReceived(payload))
        elif payload == DRAIN_PING and self.is_draining:
            self._inbound.refuse_new()
        else:
            self._inbound.events.append(PingAcked(payload))

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
        sent = self._sender.data_frames
        inbound.updates.earn((sent - self._paid_frames) * self._updates_per_frame)
        self._paid_frames = sent
        inbound.charge(inbound.updates, "WINDOW_UPDATE frames")
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
