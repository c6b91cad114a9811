"""HEADERS and CONTINUATION: requests and their trailers (RFC 9113, sections 6.2, 6.10 and 8.1)."""

from typing import Final

from stoker.server.net.http2.common_blocks import CommonBlocks
from stoker.server.net.http2.events import Flood, HeadersTooLarge, RequestStarted, TrailersReceived
from stoker.server.net.http2.frames import (
    CONTINUATION,
    DEFAULT_WINDOW_BYTES,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAG_PRIORITY,
    ConnectionFault,
    ErrorCode,
    OversizedBlock,
    StreamFault,
)
from stoker.server.net.http2.headers import HeaderDecoder
from stoker.server.net.http2.inbound import ANY, Inbound
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.request_rules import MalformedError, check_trailers
from stoker.server.net.http2.send import Sender
from stoker.server.net.http2.streams import NEXT, Next, Step, Stream, StreamTable

#: The state of a stream that a request opens, and of one whose request is only a header. Looked up once: a member takes 70 ns.
_OPENED: Final = NEXT[Next.IDLE][Step.RECEIVE_HEADERS]
_ENDED: Final = NEXT[Next.IDLE][Step.RECEIVE_HEADERS_END]


class HeaderFrames:
    """Handles HEADERS and CONTINUATION: opens streams and ends requests. Confined to: one connection.

    Attributes:
        decoder: The peer's compression context.
    """

    __slots__ = (
        "_block",
        "_block_bytes",
        "_block_ends",
        "_block_frames",
        "_block_stream",
        "_inbound",
        "_is_lost",
        "_limits",
        "_open",
        "_sender",
        "_table",
        "_window",
        "decoder",
    )

    def __init__(self, limits: H2Limits, inbound: Inbound, table: StreamTable, sender: Sender, common: CommonBlocks) -> None:
        self._limits = limits
        self._inbound = inbound
        self._table = table
        self._open = table.open
        self._sender = sender
        self.decoder = HeaderDecoder(limits, common)
        #: Receive window of a new stream: until the peer knows the server's SETTINGS, at least the protocol's default.
        self._window = max(DEFAULT_WINDOW_BYTES, limits.stream_window_bytes)
        #: Whether a block was not decoded, so that no later one can be.
        self._is_lost = False
        #: A header block in parts: its stream, whether it ends the request, its size, the bytes that are kept, and its frames.
        self._block_stream = 0
        self._block_ends = False
        self._block_bytes = 0
        self._block = bytearray()
        self._block_frames = 0

    def settings_acked(self) -> None:
        """The peer knows the server's SETTINGS: from now on they bind it."""
        self.decoder.limit_table(self._limits.header_table_bytes)
        change = self._limits.stream_window_bytes - self._window
        if change:
            self._window += change
            for stream in self._open.values():
                stream.receive_window += change

    def headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if flags & (FLAG_PADDED | FLAG_PRIORITY):
            start, end = _unpadded(flags, data, start, end)
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS for stream {stream_id}, which no client can open")
        ends = flags & FLAG_END_STREAM == FLAG_END_STREAM
        if flags & FLAG_END_HEADERS:
            self._take(stream_id, data[start:end], ends)
            return
        self._inbound.expected = CONTINUATION
        self._block_stream = stream_id
        self._block_ends = ends
        self._block = bytearray(memoryview(data)[start:end])
        self._block_bytes = end - start
        self._block_frames = 0

    def continuation(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        inbound = self._inbound
        if inbound.expected != CONTINUATION or stream_id != self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION for stream {stream_id}, which has begun no header block")
        self._block_bytes += end - start
        self._block_frames += 1
        most_bytes = self._limits.header_block_bytes
        if self._block_frames > self._limits.continuation_frames:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {self._block_bytes} bytes in {self._block_frames} CONTINUATION frames"
            )
        if self._block_bytes <= most_bytes:
            self._block += memoryview(data)[start:end]
        if flags & FLAG_END_HEADERS:
            inbound.expected = ANY
            block = bytes(self._block)
            self._block = bytearray()
            if self._block_bytes > most_bytes and not self._is_lost:
                self._lose(stream_id, f"a header block of {self._block_bytes} bytes, {most_bytes} are taken")
            else:
                self._take(stream_id, block, self._block_ends)

    def _take(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Takes a complete block."""
        if self._is_lost:
            self._drop(stream_id)
            return
        inbound, table, limits = self._inbound, self._table, self._limits
        try:
            if stream_id <= table.last_id:
                self._late(stream_id, block, ends)
                return
            request = self.decoder.request(block)
        except OversizedBlock as fault:
            self._lose(stream_id, fault.text)
            return
        if stream_id == table.last_id + 2:
            table.last_id = stream_id
        else:
            table.begin(stream_id)
        if inbound.is_refusing or len(self._open) >= limits.concurrent_streams:
            inbound.charge(Flood.RESETS, "refused streams")
            inbound.reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        if request.malformed is not None:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, request.malformed)
        if ends and request.content_length:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a content-length, but no body")
        table.opened += 1
        self._open[stream_id] = Stream(
            stream_id, _ENDED if ends else _OPENED, self._window, self._sender.initial_window, request.content_length
        )
        if request.size_bytes > limits.header_list_bytes or len(request.headers) > limits.header_count:
            inbound.charge(Flood.FAULTS, "requests with too large headers")
            inbound.events.append(HeadersTooLarge(stream_id, request.size_bytes, len(request.headers), ends))
        else:
            inbound.events.append(RequestStarted(stream_id, request, ends))

    def _lose(self, stream_id: int, text: str) -> None:
        """Gives up decoding: the stream of the block is reset, new ones are refused, and the open ones go on."""
        self._is_lost = True
        table, inbound = self._table, self._inbound
        if stream_id <= table.last_id:
            inbound.flooded(Flood.HEADERS, text)
            self._drop(stream_id)
            return
        # It counts as served: another try elsewhere would be as large.
        table.begin(stream_id)
        inbound.flooded(Flood.HEADERS, text)
        inbound.reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM)

    def _drop(self, stream_id: int) -> None:
        """Takes a block that cannot be decoded, because an earlier one was not."""
        if stream_id > self._table.last_id:
            self._table.begin(stream_id)
            self._inbound.charge(Flood.RESETS, "refused streams")
            self._inbound.reset(stream_id, ErrorCode.REFUSED_STREAM)
        elif stream_id in self._open:
            raise StreamFault(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "trailers that cannot be decoded")
        else:
            self._inbound.charge(Flood.CONTROL, "frames for streams that are reset")

    def _late(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Takes a block of a stream that has begun. It goes through the decoder even if it is dropped: later blocks depend on it."""
        stream = self._open.get(stream_id)
        if stream is not None:
            self._trailers(stream, block, ends)
            return
        if not self._table.was_reset_here(stream_id):
            self._inbound.check_crossed(stream_id, Step.RECEIVE_HEADERS_END if ends else Step.RECEIVE_HEADERS)
        self._inbound.charge(Flood.CONTROL, "frames for streams that are reset")
        self.decoder.fields(block)

    def _trailers(self, stream: Stream, block: bytes, ends: bool) -> None:
        fields = self.decoder.fields(block)
        after = NEXT[stream.state][Step.RECEIVE_HEADERS_END if ends else Step.RECEIVE_HEADERS]
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
        self._inbound.report_written(stream)
        self._inbound.events.append(TrailersReceived(stream.id, fields))
        stream.state = after
        if after is Next.CLOSED:
            self._table.close(stream)


def _unpadded(flags: int, data: bytes, start: int, end: int) -> tuple[int, int]:
    """The positions at which the header block in HEADERS begins and ends."""
    extra = (1 if flags & FLAG_PADDED else 0) + (5 if flags & FLAG_PRIORITY else 0)
    if end - start < extra:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of {end - start} bytes with flags {flags:#x}")
    padding = data[start] if flags & FLAG_PADDED else 0
    if end - start - extra < padding:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS with more padding than payload")
    return start + extra, end - padding
