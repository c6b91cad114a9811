"""`FakeClock`: a clock that stands still until a test moves it."""

NS_PER_S = 1_000_000_000


class FakeClock:
    """Implements `stoker.backends.api.clock.Clock`. Both scales move together."""

    def __init__(self, *, now_ns: int = 1_000 * NS_PER_S, wall_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ms * 1_000_000

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ms(self) -> int:
        return self._wall_ns // 1_000_000

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> None:
        """Moves time forward by `seconds` plus `ns` nanoseconds; a monotonic clock never goes back."""
        step = round(seconds * NS_PER_S) + ns
        if step < 0:
            raise ValueError(f"time cannot go back by {-step} ns")
        self._now_ns += step
        self._wall_ns += step

    def jump_wall(self, seconds: float) -> None:
        """Moves only the wall clock, forward or back, as an operator or NTP may."""
        self._wall_ns += round(seconds * NS_PER_S)
