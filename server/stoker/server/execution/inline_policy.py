"""`InlinePolicy`: whether batches of a model are quick enough to run on the event loop itself. Pure: durations come in, answers come out.

A hop to a worker thread and back costs 33 to 41 us, more than a tiny model's work; but what runs on the loop holds up everybody. So a
model earns its place there: batches of one size class (powers of two, of rows or, where row shapes vary, of bytes) begin in the thread,
come to the loop after a run of quick ones, and leave it again when more than one in a hundred takes longer than `SLOW_NS`, or one much
longer. Each return takes more quick runs than the last, unless the stay was long: on a host that others use, a quick run now and then is
charged for what the host did. A model that was slow by far, once, never comes (again).
"""

#: The bound on the 99th percentile of what runs on the loop.
SLOW_NS = 200_000
#: What comes to the loop must be clearly quicker than what may stay there.
QUICK_NS = 150_000
#: One run this long ends a stay at once.
EVICT_NS = 10 * SLOW_NS
#: One run this long ends all stays of the model: CPU time, and time by the clock, which also tells waiting from work.
BAN_CPU_NS, BAN_WALL_NS = 100 * SLOW_NS, 500 * SLOW_NS
#: Quick runs that a first stay takes; each further one takes so many times more, up to a bound.
FIRST_RUNS, MORE_RUNS, MOST_RUNS = 32, 8, 16_384
#: What one run that is not quick takes off the count of quick ones: of those that come to the loop, too, at most one in a hundred is slow.
SLOW_COST_RUNS = 100
#: Of so many runs on the loop so many may be slow: one in a hundred.
WINDOW_RUNS, WINDOW_SLOW = 256, 2
#: A stay of so many runs was worth it, however it ended: the next return is as easy as the first.
LONG_DWELL_RUNS = 2_048


class _SizeClass:
    """One size class."""

    __slots__ = ("_dwelt_runs", "_needed", "_quick", "_runs", "_slow", "is_on_loop")

    def __init__(self) -> None:
        self.is_on_loop = False
        self._needed = FIRST_RUNS
        self._quick = 0
        self._runs = 0
        self._slow = 0
        self._dwelt_runs = 0

    def ran(self, cpu_ns: int) -> None:
        if self.is_on_loop:
            self._check_dwell(cpu_ns)
        elif cpu_ns > QUICK_NS:
            self._quick = max(0, self._quick - SLOW_COST_RUNS)
        else:
            self._quick += 1
            if self._quick >= self._needed:
                self.is_on_loop = True
                self._runs = self._slow = self._dwelt_runs = 0

    def _check_dwell(self, cpu_ns: int) -> None:
        self._runs += 1
        if cpu_ns > SLOW_NS:
            self._slow += 1
            if self._slow > WINDOW_SLOW or cpu_ns >= EVICT_NS:
                self.is_on_loop = False
                self._quick = 0
                was_long = self._dwelt_runs + self._runs > LONG_DWELL_RUNS
                self._needed = FIRST_RUNS if was_long else min(MORE_RUNS * self._needed, MOST_RUNS)
                return
        if self._runs >= WINDOW_RUNS:
            self._dwelt_runs += self._runs
            self._runs = self._slow = 0


class InlinePolicy:
    """The pace of one instance. Confined to: the event loop."""

    def __init__(self) -> None:
        self._by_class: dict[int, _SizeClass] = {}
        self._is_warm = False
        self._is_banned = False

    def may_run_on_loop(self, size: int) -> bool:
        """Whether a batch of `size` may run on the loop: others of its class did, lately, quickly."""
        size_class = self._by_class.get(size.bit_length())
        return size_class is not None and size_class.is_on_loop and not self._is_banned

    def ran(self, size: int, *, cpu_ns: int, wall_ns: int) -> None:
        """A batch of `size` took so long, wherever it ran: time on the processor, which is the model's own, and time by the clock.

        The first one is not judged: it finds everything cold.
        """
        if not self._is_warm:
            self._is_warm = True
        elif cpu_ns >= BAN_CPU_NS or wall_ns >= BAN_WALL_NS:
            self._is_banned = True
            self._by_class.clear()
        elif not self._is_banned:
            size_class = self._by_class.get(size.bit_length())
            if size_class is None:
                size_class = self._by_class[size.bit_length()] = _SizeClass()
            size_class.ran(cpu_ns)
