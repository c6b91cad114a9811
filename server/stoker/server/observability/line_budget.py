"""`LineBudget`: a bound on log lines of one kind, which says how many it has held back."""

_NS_PER_S = 1_000_000_000


class LineBudget:
    """So many lines a second, filled up as time goes by. Confined to: one caller at a time."""

    __slots__ = ("_left", "_per_s", "_suppressed", "_updated_ns")

    def __init__(self, per_s: int) -> None:
        """Full: so many lines may come at once."""
        self._per_s = per_s
        self._left = float(per_s)
        self._updated_ns: int | None = None
        self._suppressed = 0

    def take(self, now_ns: int) -> int | None:
        """Whether one more is logged: how many were not since the last that was; None: this one is not."""
        if self._updated_ns is not None:
            self._left = min(self._per_s, self._left + (now_ns - self._updated_ns) * self._per_s / _NS_PER_S)
        self._updated_ns = now_ns
        if self._left < 1:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
