"""`UnsentWatch`: since when a client has taken nothing of what waits to be sent to it."""


class UnsentWatch:
    """Looked at from time to time, not told of each write: the bound costs a fast request nothing. Confined to: the event loop."""

    __slots__ = ("_since_s", "_size_bytes")

    def __init__(self) -> None:
        self._size_bytes = 0
        self._since_s = 0.0

    def is_stuck(self, size_bytes: int, now_s: float, most_s: float) -> bool:
        """Whether the same `size_bytes` have waited for more than `most_s` seconds."""
        if size_bytes != self._size_bytes:
            self._size_bytes, self._since_s = size_bytes, now_s
            return False
        return bool(size_bytes) and now_s - self._since_s > most_s
