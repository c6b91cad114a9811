"""Supervises the peer of one connection: gRPC's keepalive rules, unflushed responses, and the stalled-peer timeout.

From gRPC proposals A8 (client-side keepalive) and A9 (server-side connection management). Time is a parameter: a sweep looks at every
connection, so that none needs timers of its own.
"""

from typing import Final

from stoker.server.core.limits import Limits
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.progress import Progress
from stoker.server.rpc.http2.connection_context import Connection, ConnectionContext
from stoker.server.rpc.settings import GrpcSettings

#: Minimum seconds between the pings of a client without a call, if such pings are not permitted: gRPC's own number.
_INTERVAL_WITHOUT_CALLS_S: Final = 7200.0
#: Payload of keepalive pings; the PING of a drain has another one.
PAYLOAD: Final = b"stoker??"


class PingRules:
    """The pings of one connection. Confined to: the event loop."""

    __slots__ = ("_last_ping_s", "_ping_sent_s", "_sent_frames", "_settings", "_strikes", "has_sent_data", "heard_s")

    def __init__(self, settings: GrpcSettings, now_s: float) -> None:
        self._settings = settings
        self._strikes = 0
        self._sent_frames = 0
        self._last_ping_s: float | None = None
        self._ping_sent_s: float | None = None
        #: When the last frame of the peer arrived, in seconds of the loop's clock.
        self.heard_s = now_s
        #: Whether a response was sent since the peer's last ping: the client may ping because of it.
        self.has_sent_data = False

    def is_too_many(self, now_s: float, *, has_calls: bool = True, sent_frames: int = 0) -> bool:
        """Notes a ping of the client; returns whether the client has exceeded the permitted number.

        A large response is still being sent after its call has ended. gRPC clients ping while they read it, to measure the bandwidth.

        Args:
            now_s: The time.
            has_calls: Whether calls are in work on the connection.
            sent_frames: DATA frames sent so far.
        """
        last_s, self._last_ping_s = self._last_ping_s, now_s
        if self.has_sent_data or sent_frames != self._sent_frames:
            self._sent_frames = sent_frames
            self.has_sent_data = False
            self._strikes = 0
            return False
        is_usual = has_calls or self._settings.permits_pings_without_calls
        if last_s is not None and now_s - last_s < (self._settings.min_ping_interval_s if is_usual else _INTERVAL_WITHOUT_CALLS_S):
            self._strikes += 1
        return self._strikes > self._settings.max_ping_strikes

    def should_ping(self, now_s: float, *, has_calls: bool = True) -> bool:
        """Whether to ping the peer now because it has been silent for the keepalive time."""
        if not (has_calls or self._settings.permits_pings_without_calls):
            return False
        if self._ping_sent_s is not None or now_s - self.heard_s < self._settings.keepalive_time_s:
            return False
        self._ping_sent_s = now_s
        return True

    def is_dead(self, now_s: float) -> bool:
        """Whether a ping has had no ACK for too long; any received frame counts as one."""
        if self._ping_sent_s is None:
            return False
        if self.heard_s > self._ping_sent_s:
            self._ping_sent_s = None
            return False
        return now_s - self._ping_sent_s >= self._settings.keepalive_timeout_s


class UnflushedResponses:
    """The unflushed responses of one connection. The byte budget may evict them as it evicts an `Upload`: that resets their streams.
    Confined to: the event loop.

    Attributes:
        size_bytes: Bytes of all of them together.
        unary: How many of them belong to unary calls, whose responses clients read as they arrive.
    """

    __slots__ = ("_connection", "_context", "_progress", "_sizes", "_taken_bytes", "_unary", "size_bytes")

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        #: None while no response waits: a cycle would leave a closed connection to the garbage collector.
        self._connection: Connection | None = None
        self._sizes: dict[int, int] = {}
        self._unary: set[int] = set()
        self._progress: Progress | None = None
        self._taken_bytes = 0
        self.size_bytes = 0

    def streams(self) -> list[int]:
        """The calls whose responses wait."""
        return list(self._sizes)

    @property
    def unary(self) -> int:
        return len(self._unary)

    def keep(self, connection: Connection, stream_id: int, size_bytes: int, *, is_unary: bool) -> bool:
        """Reserves the bytes that wait on the stream of `connection`; False: the byte budget is exhausted."""
        context = self._context
        if not context.engine.budget.reserve_response(size_bytes):
            return False
        self._sizes[stream_id] = size_bytes
        self.size_bytes += size_bytes
        if is_unary:
            self._unary.add(stream_id)
        if self._progress is None:
            self._progress = Progress(context.limits, context.loop.time())
            self._connection = connection
            self._taken_bytes = connection.taken_bytes
            context.engine.budget.watch(self)
        return True

    def forget(self, stream_id: int) -> None:
        """Releases the bytes of a response that was sent or cancelled."""
        size_bytes = self._sizes.pop(stream_id, 0)
        if size_bytes:
            self.size_bytes -= size_bytes
            self._context.engine.budget.release(size_bytes)
            self._unary.discard(stream_id)
            if not self._sizes:
                self._progress = self._connection = None
                self._context.engine.budget.unwatch(self)

    def look(self) -> None:
        """Notes how much the client has received; called by each sweep."""
        if self._progress is not None and self._connection is not None:
            taken_bytes = self._connection.taken_bytes
            self._progress.note(taken_bytes - self._taken_bytes, self._context.loop.time())
            self._taken_bytes = taken_bytes

    def is_being_read(self, most_unread_bytes: int) -> bool:
        """Whether the client reads them, so that it may begin more calls although more than `most_unread_bytes` wait.

        At its present rate it must read all of them before the time ends for which it may leave data unread. In the first second it must
        have read as many as `most_unread_bytes`. A single response does not matter: it may be larger than the limit.
        """
        progress = self._progress
        if len(self._sizes) <= 1 or progress is None:
            return True
        rate = self.rate()
        if rate is None:
            return progress.size_bytes >= most_unread_bytes
        return self.size_bytes <= rate * self._context.limits.write_idle_timeout_s

    def held_bytes(self) -> int:
        return self.size_bytes

    def rate(self) -> float | None:
        self.look()
        return None if self._progress is None else self._progress.rate(self._context.loop.time())

    def evict(self) -> None:
        connection = self._connection
        if connection is None:
            return
        for stream_id in self.streams():
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            connection.core.reset_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self.forget(stream_id)
        connection.notice_output()


#: Factor by which the end of a streamed response may stay unread longer than a unary response.
_STREAM_TIMEOUT_FACTOR: Final = 10


class PeerMonitor:
    """One connection's peer. Confined to: the event loop.

    Attributes:
        opened_s: When the connection was opened; all times are the loop's, in seconds.
        event_s: When the HTTP/2 core last returned an event.
        written_bytes: Bytes written to the transport since the connection was opened.
        pings: gRPC's keepalive rules.
        idle_since_s: Since when no stream has been open, as of the last `note_streams`.
    """

    __slots__ = (
        "_limits",
        "_opened_streams",
        "_partial_s",
        "_stuck_s",
        "_taken_bytes",
        "event_s",
        "idle_since_s",
        "opened_s",
        "pings",
        "written_bytes",
    )

    def __init__(self, limits: Limits, settings: GrpcSettings, now_s: float) -> None:
        self._limits = limits
        self.opened_s = now_s
        self.event_s = now_s
        self.written_bytes = 0
        self.pings = PingRules(settings, now_s)
        self._partial_s: float | None = None
        self._stuck_s: float | None = None
        self._taken_bytes = 0
        self._opened_streams = 0
        self.idle_since_s = now_s

    def note_streams(self, core: ServerConnection, now_s: float) -> float:
        """Notes whether the connection was used since the last call; returns how many seconds it has been idle."""
        opened_streams = core.opened_streams
        if core.open_streams or opened_streams != self._opened_streams:
            self._opened_streams = opened_streams
            self.idle_since_s = now_s
        return now_s - self.idle_since_s

    def is_lost(self, core: ServerConnection, now_s: float) -> bool:
        """Whether to close the connection, whose HTTP/2 state is `core`."""
        if not core.is_ready:
            return now_s - self.opened_s > self._limits.grpc_handshake_timeout_s
        return self.pings.is_dead(now_s) or self._is_stalled(core, now_s)

    def _is_stalled(self, core: ServerConnection, now_s: float) -> bool:
        """Whether one frame or header block has been incomplete for too long, and no complete one has arrived meanwhile."""
        if not core.is_mid_frame:
            self._partial_s = None
            return False
        if self._partial_s is None:
            self._partial_s = now_s
        return now_s - max(self._partial_s, self.event_s) > self._limits.header_timeout_s

    def is_stuck(self, buffered_bytes: int, unflushed: UnflushedResponses, now_s: float) -> bool:
        """Whether the peer has received nothing for too long although output waits for it.

        Clients read responses to unary calls as they arrive. The end of a stream may wait for a slow application.

        Args:
            buffered_bytes: Bytes in the transport's write buffer.
            unflushed: Finished responses that wait for the peer's windows.
            now_s: The time.
        """
        taken_bytes = self.written_bytes - buffered_bytes
        if not (buffered_bytes or unflushed.size_bytes):
            self._stuck_s = None
        elif self._stuck_s is None or taken_bytes != self._taken_bytes:
            self._stuck_s = now_s
        self._taken_bytes = taken_bytes
        patience_s = self._limits.write_idle_timeout_s * (1 if buffered_bytes or unflushed.unary else _STREAM_TIMEOUT_FACTOR)
        return self._stuck_s is not None and now_s - self._stuck_s > patience_s
