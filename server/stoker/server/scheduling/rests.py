"""`InstanceRests`: which of a version's instances gets the next batch, and which are passed over because they fail. Pure.

An instance that fails at once is always free, and so the most free one would always be the one that fails: a lost device would take all
the requests of its siblings with it. So an instance whose device failed its last batch as a whole rests while others are well. When its
pause is over it is probed with one batch; each probe that fails doubles the pause, one success ends it. Where all rest nobody is spared:
requests get the real error at once.
"""

from collections.abc import Iterable, Sequence

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError

#: The first pause; a device that was reset is back within about that time.
FIRST_PAUSE_NS = 1_000_000_000
#: The longest: what a probe costs, one batch of requests that fail, is paid no more often than that.
LAST_PAUSE_NS = 60_000_000_000


class _Rest:
    __slots__ = ("is_probing", "pause_ns", "until_ns")

    def __init__(self, until_ns: int) -> None:
        self.pause_ns = FIRST_PAUSE_NS
        self.until_ns = until_ns
        self.is_probing = False


class InstanceRests:
    """Confined to: the event loop."""

    def __init__(self) -> None:
        self._rests: dict[int, _Rest] = {}

    def __len__(self) -> int:
        """Instances that rest now."""
        return len(self._rests)

    def choose(self, free_slots: Sequence[int], now_ns: int) -> int | None:
        """The instance for the next batch, of those with `free_slots` (one number for each); None: wait until one is free.

        One whose pause is over comes first, and gets one batch only.
        """
        rests = self._rests
        if not rests or len(rests) == len(free_slots):
            return _most_free(range(len(free_slots)), free_slots)
        for index, rest in rests.items():
            if not rest.is_probing and rest.until_ns <= now_ns and free_slots[index] > 0:
                rest.is_probing = True
                return index
        return _most_free((index for index in range(len(free_slots)) if index not in rests), free_slots)

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When `choose` may next have another answer by the time alone; None: never."""
        return min((rest.until_ns for rest in self._rests.values() if not rest.is_probing and rest.until_ns > now_ns), default=None)

    def ended(self, index: int, has_failed: bool, now_ns: int) -> bool:
        """A batch of instance `index` has ended; returns whether the instance has begun or ended its rest by that."""
        rest = self._rests.get(index)
        if not has_failed:
            return self._rests.pop(index, None) is not None
        if rest is None:
            self._rests[index] = _Rest(now_ns + FIRST_PAUSE_NS)
            return True
        # What was in work beside, or given because all rest, is no further sign.
        if rest.is_probing or rest.until_ns <= now_ns:
            rest.is_probing = False
            rest.pause_ns = min(2 * rest.pause_ns, LAST_PAUSE_NS)
            rest.until_ns = now_ns + rest.pause_ns
        return False


def has_failed_wholly(result: BatchResult) -> bool:
    """Whether no request of a batch was answered, for reasons that lie with the instance: it says UNAVAILABLE.

    Whatever else it raises counts as the request's own (see `Instance.execute`): else one client whose requests fail could make
    instance after instance rest, at everybody's cost.
    """
    return all(isinstance(outcome, ServingError) and outcome.code is ErrorCode.UNAVAILABLE for outcome in result.outcomes)


def _most_free(indices: Iterable[int], free_slots: Sequence[int]) -> int | None:
    best = max(indices, key=free_slots.__getitem__)
    return best if free_slots[best] > 0 else None
