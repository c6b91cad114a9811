"""Quantiles of the last minute, for Triton's `nv_inference_*_summary_us`.

Values are counted in fine buckets, each 5 % wider than the one before, so that a quantile is told within 5 % whatever its rank. The
minute is a ring of slots of 12 s, as in Triton (prometheus-cpp: `max_age` 60 s, 5 `age_buckets`); a slot is emptied when its turn comes
again, and what is older than the minute is left out. Nothing else is kept, so that memory does not grow with the number of requests.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stoker.backends.api.clock import Clock
from stoker.server.observability.histogram import Histogram

SLOTS: Final = 5
SLOT_NS: Final = 12_000_000_000
_STEP: Final = 1.05
#: From 1 us to more than a quarter of an hour.
_BOUNDS_NS: Final = tuple(round(1_000 * _STEP**power) for power in range(424))


class _Slot(NamedTuple):
    turn: int
    counts: Histogram


class RollingQuantiles:
    """Quantiles of one kind of time over the last minute. Confined to: the event loop."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[_Slot | None] = [None] * SLOTS

    def current(self, now_ns: int) -> Histogram:
        """What takes the observations of `now_ns`, in nanoseconds."""
        turn = now_ns // SLOT_NS
        slot = self._slots[turn % SLOTS]
        if slot is None or slot.turn != turn:
            slot = self._slots[turn % SLOTS] = _Slot(turn, Histogram(_BOUNDS_NS))
        return slot.counts

    def quantiles_ns(self, ranks: Sequence[float], now_ns: int) -> list[int | None]:
        """For each of `ranks` (0 to 1) the time in nanoseconds that so large a part did not exceed; None where nothing was observed."""
        oldest = now_ns // SLOT_NS - SLOTS + 1
        cumulative = [list(slot.counts.cumulative()) for slot in self._slots if slot is not None and slot.turn >= oldest]
        counts = [sum(column[1] for column in row) for row in zip(*cumulative, strict=True)]
        return [_at_rank(counts, rank) for rank in ranks]


class LatencySummaries:
    """The five times of a model version that Triton summarises. Confined to: the event loop."""

    __slots__ = ("_clock", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.request = RollingQuantiles()
        self.queue = RollingQuantiles()
        self.compute_input = RollingQuantiles()
        self.compute_infer = RollingQuantiles()
        self.compute_output = RollingQuantiles()

    def observe(self, *, request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Requests of one batch were answered."""
        now_ns, count = self._clock.now_ns(), len(request_ns)
        self.request.current(now_ns).observe_all(request_ns)
        self.queue.current(now_ns).observe_all(queue_ns)
        self.compute_input.current(now_ns).observe(input_ns, count)
        self.compute_infer.current(now_ns).observe(infer_ns, count)
        self.compute_output.current(now_ns).observe(output_ns, count)


def _at_rank(counts: Sequence[int], rank: float) -> int | None:
    """The upper end of the bucket that holds the value of `rank`; `counts` are cumulative, those of `_BOUNDS_NS` and that of all."""
    if not counts or not counts[-1]:
        return None
    wanted = max(1, rank * counts[-1])
    return next((bound for bound, count in zip(_BOUNDS_NS, counts, strict=False) if count >= wanted), _BOUNDS_NS[-1])
