"""Budgets against floods: what a peer may do for nothing."""

import enum


class Flood(enum.Enum):
    """What a peer may send too much of; the value names it in metrics."""

    #: SETTINGS, PING, PRIORITY, GOAWAY, WINDOW_UPDATE, unknown and empty frames, and small ones for streams that were reset here.
    CONTROL = "control_flood"
    #: Streams that the peer resets, and requests that are refused by REFUSED_STREAM.
    RESETS = "reset_flood"
    #: Streams that end because the peer broke a rule, and requests with too large headers.
    FAULTS = "fault_flood"
    #: Metadata of one request, far above what is allowed: it is not decoded, and what comes after it cannot be.
    HEADERS = "oversized_metadata"


class Budget:
    """A token bucket, filled up only when it is empty: after a long silence a burst may come twice. Confined to: one connection."""

    __slots__ = ("_burst", "_left", "_per_s", "_since_s")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        """`burst` at once, and `per_s` each second after."""
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._since_s = now_s

    def spend(self, now_s: float) -> bool:
        """Takes one; False: the peer has none left."""
        left = self._left
        if left < 1.0:
            left = min(self._burst, left + (now_s - self._since_s) * self._per_s)
            self._since_s = now_s
            if left < 1.0:
                self._left = left
                return False
        self._left = left - 1.0
        return True

    def earn(self, count: float) -> None:
        """Gives `count` more, never above the burst."""
        self._left = min(self._burst, self._left + count)

    def refill(self) -> None:
        """Gives the whole burst again."""
        self._left = self._burst
