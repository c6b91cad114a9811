"""Bounds of one HTTP/2 connection."""

from dataclasses import dataclass, fields

from server.frontends.h2.frames import DEFAULT_FRAME_BYTES, DEFAULT_WINDOW_BYTES, MOST_FRAME_BYTES, MOST_WINDOW_BYTES
from server.frontends.limits import MIB, Limits

_FRONT = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class H2Limits:
    """What one peer may cost. Sizes in bytes; a rate comes with the burst that may precede it.

    Attributes:
        concurrent_streams: Requests that may be open; one more is refused (REFUSED_STREAM).
        header_list_bytes: All fields of one request, each counted as RFC 9113 section 10.5.1 does (name, value and 32); a request
            above it is told apart (`HeadersTooLarge`).
        header_count: Fields of one request, pseudo-header fields included; above it likewise.
        header_block_bytes: A header block as sent, and what it may decode to: more ends the connection.
        continuation_frames: CONTINUATION frames of one header block.
        header_table_bytes: HPACK table that the peer may fill.
        stream_window_bytes: What a stream's peer may send before the application gives window back.
        connection_window_bytes: The same for all streams together; it bounds what received bytes a connection can hold.
        frame_bytes: Payload of one received frame.
        sent_frame_bytes: Payload of one DATA frame sent, if the peer takes as much: what other streams wait for.
        output_bytes: What is handed to the transport at a time; data of streams waits behind it in turn.
        stream_queue_bytes: What may wait on one stream when the application comes with more.
        control_frames_waiting: Frames that answer the peer's own (ACKs, RST_STREAM), kept while the transport is not writable.
        control_burst, control_per_s: SETTINGS, PING, PRIORITY, unknown and empty frames and small ones for streams reset here;
            on an account of its own, WINDOW_UPDATE beyond `updates_per_frame`.
        updates_per_frame: WINDOW_UPDATE frames that each DATA frame sent entitles to.
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
    control_burst: int = 1000
    control_per_s: float = 200.0
    updates_per_frame: int = 2
    settings_count: int = 32
    reset_burst: int = 2000
    reset_per_s: float = 500.0
    fault_burst: int = 200
    fault_per_s: float = 20.0
    closed_streams: int = 1000

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
        """The bounds that go with those of the fronts."""
        return cls(
            concurrent_streams=limits.grpc_concurrent_streams,
            header_list_bytes=limits.grpc_metadata_bytes,
            header_count=limits.header_count,
            header_block_bytes=2 * limits.grpc_metadata_bytes,
        )
