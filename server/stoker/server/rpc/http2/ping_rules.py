"""gRPC's keepalive rules: how often a client may ping, and when the server asks whether a silent one is still there.

From gRPC proposal A8 (client-side keepalive) and A9 (server-side connection management). Time is a parameter.
"""

from stoker.server.rpc.settings import GrpcSettings

#: How often a client without a call may ping where that is not permitted, seconds: gRPC's own number.
_INTERVAL_WITHOUT_CALLS_S = 7200.0
#: What our own pings carry; a PING of a drain carries something else.
PAYLOAD = b"stoker??"


class PingRules:
    """The pings of one connection. Confined to: the event loop."""

    __slots__ = ("_asked_s", "_last_ping_s", "_sent_frames", "_settings", "_strikes", "has_sent_data", "heard_s")

    def __init__(self, settings: GrpcSettings, now_s: float) -> None:
        self._settings = settings
        self._strikes = 0
        self._sent_frames = 0
        self._last_ping_s: float | None = None
        self._asked_s: float | None = None
        #: When the peer was last heard of.
        self.heard_s = now_s
        #: An answer was sent since the peer's last ping, which may well have been caused by it.
        self.has_sent_data = False

    def note_sent(self, data_frames: int) -> None:
        """Notes how many DATA frames were ever sent.

        A large answer goes out long after its call was answered, and gRPC's clients ping while they read it, to measure the connection.
        """
        if data_frames != self._sent_frames:
            self._sent_frames = data_frames
            self.has_sent_data = True

    def is_too_many(self, now_s: float, *, has_calls: bool = True) -> bool:
        """Notes a ping of the client; whether it was one too many. `has_calls`: some are in work on its connection."""
        last_s, self._last_ping_s = self._last_ping_s, now_s
        if self.has_sent_data:
            self.has_sent_data = False
            self._strikes = 0
            return False
        is_usual = has_calls or self._settings.permits_pings_without_calls
        if last_s is not None and now_s - last_s < (self._settings.min_ping_interval_s if is_usual else _INTERVAL_WITHOUT_CALLS_S):
            self._strikes += 1
        return self._strikes > self._settings.max_ping_strikes

    def should_ask(self, now_s: float, *, has_calls: bool = True) -> bool:
        """Whether to ping the peer now, because it has been silent for long."""
        if not (has_calls or self._settings.permits_pings_without_calls):
            return False
        if self._asked_s is not None or now_s - self.heard_s < self._settings.keepalive_time_s:
            return False
        self._asked_s = now_s
        return True

    def is_dead(self, now_s: float) -> bool:
        """Whether a ping has gone unanswered for too long; anything heard counts as an answer."""
        if self._asked_s is None:
            return False
        if self.heard_s > self._asked_s:
            self._asked_s = None
            return False
        return now_s - self._asked_s >= self._settings.keepalive_timeout_s
