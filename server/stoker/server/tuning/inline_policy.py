"""`InlinePolicy`: decides whether batches of a model run on the event loop. Pure: durations in, decisions out.

A hop to a worker thread and back costs 33 to 41 us, more than the work of a tiny model; but a batch on the loop delays all other requests.
Batches are judged by size class (powers of two, of rows or, where row shapes vary, of bytes). A size class begins in the thread and moves
to the loop after a run of quick batches. It moves back when more than one batch in a hundred takes longer than `INLINE_SLOW_NS`, or one
takes much longer. Each return needs more quick batches than the last, unless the dwell on the loop was long: on a shared host, a quick
batch is sometimes charged for the work of others. After one extremely slow batch the model stays in the thread permanently.
"""

from stoker.server.tuning.constants import (
    INLINE_BAN_CPU_NS,
    INLINE_BAN_WALL_NS,
    INLINE_EVICT_NS,
    INLINE_FIRST_RUNS,
    INLINE_LONG_DWELL_RUNS,
    INLINE_MORE_RUNS,
    INLINE_MOST_RUNS,
    INLINE_QUICK_NS,
    INLINE_SLOW_COST_RUNS,
    INLINE_SLOW_NS,
    INLINE_WINDOW_RUNS,
    INLINE_WINDOW_SLOW,
)


class _SizeClass:
    """The state of one size class."""

    __slots__ = ("_dwelt_runs", "_needed", "_quick", "_runs", "_slow", "is_on_loop")

    def __init__(self) -> None:
        self.is_on_loop = False
        self._needed = INLINE_FIRST_RUNS
        self._quick = 0
        self._runs = 0
        self._slow = 0
        self._dwelt_runs = 0

    def ran(self, cpu_ns: int, runs: int) -> None:
        if not self.is_on_loop:
            self._ran_in_thread(cpu_ns)
            return
        self._runs += runs
        if cpu_ns > INLINE_SLOW_NS:
            self._slow += runs
            if self._slow > INLINE_WINDOW_SLOW or cpu_ns >= INLINE_EVICT_NS:
                self.is_on_loop = False
                self._quick = 0
                was_long = self._dwelt_runs + self._runs > INLINE_LONG_DWELL_RUNS
                self._needed = INLINE_FIRST_RUNS if was_long else min(INLINE_MORE_RUNS * self._needed, INLINE_MOST_RUNS)
                return
        if self._runs >= INLINE_WINDOW_RUNS:
            self._dwelt_runs += self._runs
            self._runs = self._slow = 0

    def _ran_in_thread(self, cpu_ns: int) -> None:
        if cpu_ns > INLINE_QUICK_NS:
            self._quick = max(0, self._quick - INLINE_SLOW_COST_RUNS)
            return
        self._quick += 1
        if self._quick >= self._needed:
            self.is_on_loop = True
            self._runs = self._slow = self._dwelt_runs = 0


class InlinePolicy:
    """The policy of one instance. Confined to: the event loop."""

    def __init__(self) -> None:
        self._by_class: dict[int, _SizeClass] = {}
        self._is_warm = False
        self._is_banned = False

    def may_run_on_loop(self, size: int) -> bool:
        """Whether a batch of `size` may run on the loop: its size class has been quick."""
        size_class = self._by_class.get(size.bit_length())
        return size_class is not None and size_class.is_on_loop and not self._is_banned

    def ran(self, size: int, *, cpu_ns: int, wall_ns: int, runs: int = 1) -> None:
        """Records that a batch of `size` has run, on the loop or in the thread.

        The first batch does not count, because caches are cold. Several that ran one after the other on the loop count with their mean
        time, except if they took extremely long together: they begin within `LOOP_SHARE_NS`, so that then the last one was slow.

        Args:
            size: Rows or bytes of each batch.
            cpu_ns: CPU time of the thread that ran it, nanoseconds.
            wall_ns: Wall time, nanoseconds.
            runs: The number of batches; the times are their sums.
        """
        if not self._is_warm:
            self._is_warm = True
        elif cpu_ns >= INLINE_BAN_CPU_NS or wall_ns >= INLINE_BAN_WALL_NS:
            self._is_banned = True
            self._by_class.clear()
        elif not self._is_banned:
            size_class = self._by_class.get(size.bit_length())
            if size_class is None:
                size_class = self._by_class[size.bit_length()] = _SizeClass()
            size_class.ran(cpu_ns if cpu_ns >= INLINE_EVICT_NS else cpu_ns // runs, runs)
