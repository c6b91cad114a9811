"""Bounds of one HTTP/2 connection."""

from dataclasses import dataclass, fields

from stoker.server.core.limits import MIB, Limits
from stoker.server.net.http2.frames import DEFAULT_FRAME_BYTES, DEFAULT_WINDOW_BYTES, MOST_FRAME_BYTES, MOST_WINDOW_BYTES

_FRONT = Limits()
_CLOSED_STREAMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class H2Limits:
    """The resources that one peer may use. Sizes in bytes; a rate comes with the burst that may precede it.

    Attributes:
        concurrent_streams: Requests that may be open; one more is refused (REFUSED_STREAM).
        header_list_bytes: All fields of one request, each counted as RFC 9113 section 10.5.1 does (name, value and 32); a request
            above it is reported as `HeadersTooLarge`.
        header_count: Fields of one request, pseudo-header fields included; above it likewise.
        header_block_bytes: A header block as sent, and what it may decode to: more ends the connection.
        continuation_frames: CONTINUATION frames of one header block.
        header_table_bytes: HPACK table that the peer may fill.
        stream_window_bytes: Bytes that the peer may send on a stream before the application gives window back.
        connection_window_bytes: The same for all streams together; it bounds the received bytes that a connection can hold.
        frame_bytes: Payload of one received frame.
        sent_frame_bytes: Payload of one DATA frame sent, if the peer takes as much: other streams wait for so many bytes.
        output_bytes: Bytes handed to the transport at a time; data of streams waits behind it in turn.
        stream_queue_bytes: Bytes that may wait on one stream when the application sends more.
        control_frames_waiting: Frames that reply to the peer's own (ACKs, RST_STREAM), kept while the transport is not writable.
        control_burst, control_per_s: SETTINGS, PING, PRIORITY, GOAWAY, WINDOW_UPDATE, unknown and empty frames and small ones for streams
            reset here, beyond those that the traffic entitles to: a KiB of DATA in either direction to one, and the two below.
        control_per_stream: Control frames that each request entitles to.
        control_per_data_frame: Control frames that each DATA frame sent entitles to.
        settings_count: Entries of one SETTINGS frame.
        reset_burst, reset_per_s: Streams that the peer resets or that are refused.
        fault_burst, fault_per_s: Streams that end because the peer broke a rule, and requests with too large headers.
        closed_streams: Streams reset here whose late frames are still tolerated.
    """

    concurrent_streams: int = _FRONT.grpc_concurrent_streams
    header_list_bytes: int = _FRONT.grpc_metadata_bytes
    header_count: int = _FRONT.header_count
    header_block_bytes: int = 2 * _FRONT.grpc_metadata_bytes
    continuation_frames: int = 16
    header_table_bytes: int = 4096
    stream_window_bytes: int = 4 * MIB
    connection_window_bytes: int = 16 * MIB
    frame_bytes: int = MIB
    sent_frame_bytes: int = 256 * 1024
    output_bytes: int = MIB
    stream_queue_bytes: int = MIB
    control_frames_waiting: int = 2000
    control_burst: int = _FRONT.grpc_control_burst
    control_per_s: float = _FRONT.grpc_control_per_s
    control_per_stream: int = 8
    control_per_data_frame: int = 2
    settings_count: int = 32
    reset_burst: int = _FRONT.grpc_reset_burst
    reset_per_s: float = _FRONT.grpc_reset_per_s
    fault_burst: int = _FRONT.grpc_fault_burst
    fault_per_s: float = _FRONT.grpc_fault_per_s
    closed_streams: int = _CLOSED_STREAMS

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value < (0 if item.name == "header_table_bytes" else 1):
                raise ValueError(f"HTTP/2 limit {item.name} must be positive, got {value}")
        if not DEFAULT_FRAME_BYTES <= self.frame_bytes <= MOST_FRAME_BYTES:
            raise ValueError(f"HTTP/2 limit frame_bytes must be {DEFAULT_FRAME_BYTES} to {MOST_FRAME_BYTES}, got {self.frame_bytes}")
        if self.header_block_bytes < self.header_list_bytes:
            raise ValueError(
                f"HTTP/2 limit header_block_bytes must be at least header_list_bytes, {self.header_list_bytes}, "
                f"got {self.header_block_bytes}"
            )
        if self.stream_window_bytes > MOST_WINDOW_BYTES:
            raise ValueError(f"HTTP/2 limit stream_window_bytes must be at most {MOST_WINDOW_BYTES}, got {self.stream_window_bytes}")
        if not DEFAULT_WINDOW_BYTES <= self.connection_window_bytes <= MOST_WINDOW_BYTES:
            raise ValueError(
                f"HTTP/2 limit connection_window_bytes must be {DEFAULT_WINDOW_BYTES} (every connection begins with that) "
                f"to {MOST_WINDOW_BYTES}, got {self.connection_window_bytes}"
            )

    @classmethod
    def of(cls, limits: Limits) -> "H2Limits":
        """The limits of a connection that follow from those of the server."""
        return cls(
            concurrent_streams=limits.grpc_concurrent_streams,
            header_list_bytes=limits.grpc_metadata_bytes,
            header_count=limits.header_count,
            header_block_bytes=2 * limits.grpc_metadata_bytes,
            control_burst=limits.grpc_control_burst,
            control_per_s=limits.grpc_control_per_s,
            reset_burst=limits.grpc_reset_burst,
            reset_per_s=limits.grpc_reset_per_s,
            fault_burst=limits.grpc_fault_burst,
            fault_per_s=limits.grpc_fault_per_s,
            # A client may have sent something on each of its open streams before it learns that they were all reset.
            closed_streams=max(_CLOSED_STREAMS, limits.grpc_concurrent_streams),
        )
