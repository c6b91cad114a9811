"""`Progress`: how fast a peer sends a request or takes a response. Sans-IO: sizes and times are parameters."""

from typing import Final

from stoker.server.core.limits import Limits

#: The period of a rate window in seconds: rates cover the last one to two periods.
_RECENT_S: Final = 1.0


class _Window:
    """Bytes per second since a mark that is one to two periods old; from the beginning where that is younger."""

    __slots__ = ("_bytes", "_next_bytes", "_next_s", "_period_s", "_since_s")

    def __init__(self, period_s: float, now_s: float) -> None:
        self._period_s = period_s
        self.restart(0, now_s)

    def restart(self, size_bytes: int, now_s: float) -> None:
        self._bytes = self._next_bytes = size_bytes
        self._since_s = self._next_s = now_s

    def look(self, size_bytes: int, now_s: float) -> tuple[int, float]:
        """Bytes since the mark, and the seconds."""
        if now_s - self._next_s >= self._period_s:
            self._bytes, self._since_s = self._next_bytes, self._next_s
            self._next_bytes, self._next_s = size_bytes, now_s
        return size_bytes - self._bytes, now_s - self._since_s


class Progress:
    """The transfer rate of one request, against the limits on slow bodies.

    Attributes:
        size_bytes: Bytes that have arrived.
    """

    __slots__ = ("_begun_s", "_heard_s", "_limits", "_recent", "_window", "size_bytes")

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self._begun_s = self._heard_s = now_s
        self._window = _Window(limits.body_idle_timeout_s, now_s)
        self._recent = _Window(_RECENT_S, now_s)
        self.size_bytes = 0

    def note(self, size_bytes: int, now_s: float) -> None:
        """Notes that `size_bytes` more have arrived."""
        # First: a window that ends now does not count them.
        self._window.look(self.size_bytes, now_s)
        self._recent.look(self.size_bytes, now_s)
        self.size_bytes += size_bytes
        self._heard_s = now_s

    def pause(self, now_s: float) -> None:
        """Excludes the time until now, in which the server did not read, from the rates; it counts for the time of the whole request."""
        self._heard_s = now_s
        self._window.restart(self.size_bytes, now_s)
        self._recent.restart(self.size_bytes, now_s)

    def rate(self, now_s: float) -> float | None:
        """Bytes per second in the last seconds; None: it began, or was paused, less than a second ago."""
        size_bytes, seconds = self._recent.look(self.size_bytes, now_s)
        return None if seconds < _RECENT_S else size_bytes / seconds

    def slowness(self, now_s: float) -> str | None:
        """The reason to end a request that arrives too slowly; None: its client may go on."""
        limits = self._limits
        # Marks the time, so that `rate` soon shows that the peer has stalled.
        self._recent.look(self.size_bytes, now_s)
        idle_s = limits.body_idle_timeout_s
        if now_s - self._heard_s > idle_s:
            return f"no further byte of the body within {idle_s:g} s"
        if now_s - self._begun_s > limits.body_timeout_s:
            return f"the body takes longer than {limits.body_timeout_s:g} s"
        size_bytes, seconds = self._window.look(self.size_bytes, now_s)
        if seconds > idle_s and size_bytes < seconds * limits.body_bytes_per_s:
            return f"the body comes slower than {limits.body_bytes_per_s} bytes a second"
        return None
