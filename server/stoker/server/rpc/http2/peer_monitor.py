"""Which peers are too slow, silent or gone: looked at now and then, so that no connection needs timers of its own. Time is a parameter."""

from stoker.server.core.limits import Limits
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.rpc.http2.ping_rules import PingRules
from stoker.server.rpc.http2.unflushed_responses import UnflushedResponses
from stoker.server.rpc.settings import GrpcSettings

#: How much longer than the answer to a unary call the end of a stream may stay unread.
_STREAM_TIMEOUT_FACTOR = 10


class PeerMonitor:
    """One connection's peer. Confined to: the event loop.

    Attributes:
        opened_s: When the connection was opened; all times are the loop's, in seconds.
        event_s: When something whole was last received.
        written_bytes: What was handed to the transport, ever.
        pings: gRPC's keepalive rules.
        idle_since_s: Since when no stream was open, as far as `note_streams` saw.
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
        """Looks whether the connection was used since the last time; returns for how many seconds it has been idle."""
        opened_streams = core.opened_streams
        if core.open_streams or opened_streams != self._opened_streams:
            self._opened_streams = opened_streams
            self.idle_since_s = now_s
        return now_s - self.idle_since_s

    def is_lost(self, core: ServerConnection, now_s: float) -> bool:
        """Whether to give up the connection, whose HTTP/2 state is `core`."""
        if not core.is_ready:
            return now_s - self.opened_s > self._limits.grpc_handshake_timeout_s
        return self.pings.is_dead(now_s) or self._is_stalled(core, now_s)

    def _is_stalled(self, core: ServerConnection, now_s: float) -> bool:
        """Whether one frame or header block has been on its way for too long, with nothing whole beside it."""
        if not core.is_mid_frame:
            self._partial_s = None
            return False
        if self._partial_s is None:
            self._partial_s = now_s
        return now_s - max(self._partial_s, self.event_s) > self._limits.header_timeout_s

    def is_stuck(self, buffered_bytes: int, unflushed: UnflushedResponses, now_s: float) -> bool:
        """Whether the peer has taken nothing for too long of what is there for it.

        Clients read their connections all the time, and take the answers to unary calls as they come. The end of a stream may wait for an
        application that takes its time.

        Args:
            buffered_bytes: What the transport still holds.
            unflushed: What waits for the peer's windows and is answered already.
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
