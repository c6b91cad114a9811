"""`Paces`: whether batches of a model are quick enough to run on the event loop itself. Pure: durations come in, answers come out.

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
MUCH_NS = 10 * SLOW_NS
#: One run this long ends all stays of the model: CPU time, and time by the clock, which also tells waiting from work.
FAR_CPU_NS, FAR_WALL_NS = 100 * SLOW_NS, 500 * SLOW_NS
#: Quick runs that a first stay takes; each further one takes so many times more, up to a bound.
FIRST_RUNS, MORE_RUNS, MOST_RUNS = 32, 8, 16_384
#: What one run that is not quick takes off the count of quick ones: of those that come to the loop, too, at most one in a hundred is slow.
SLOW_COST_RUNS = 100
#: Of so many runs on the loop so many may be slow: one in a hundred.
WINDOW_RUNS, WINDOW_SLOW = 256, 2
#: A stay of so many runs was worth it, however it ended: the next return is as easy as the first.
LONG_RUNS = 2_048


class _Pace:
    """One size class."""

    __slots__ = ("_needed", "_quick", "_runs", "_slow", "_stayed", "is_on_loop")

    def __init__(self) -> None:
        self.is_on_loop = False
        self._needed = FIRST_RUNS
        self._quick = 0
        self._runs = 0
        self._slow = 0
        self._stayed = 0

    def ran(self, cpu_ns: int) -> None:
        if self.is_on_loop:
            self._stays(cpu_ns)
        elif cpu_ns > QUICK_NS:
            self._quick = max(0, self._quick - SLOW_COST_RUNS)
        else:
            self._quick += 1
            if self._quick >= self._needed:
                self.is_on_loop = True
                self._runs = self._slow = self._stayed = 0

    def _stays(self, cpu_ns: int) -> None:
        self._runs += 1
        if cpu_ns > SLOW_NS:
            self._slow += 1
            if self._slow > WINDOW_SLOW or cpu_ns >= MUCH_NS:
                self.is_on_loop = False
                self._quick = 0
                was_long = self._stayed + self._runs > LONG_RUNS
                self._needed = FIRST_RUNS if was_long else min(MORE_RUNS * self._needed, MOST_RUNS)
                return
        if self._runs >= WINDOW_RUNS:
            self._stayed += self._runs
            self._runs = self._slow = 0


class Paces:
    """The pace of one instance. Confined to: the event loop."""

    def __init__(self) -> None:
        self._by_class: dict[int, _Pace] = {}
        self._is_warm = False
        self._was_far = False

    def may_run_on_loop(self, size: int) -> bool:
        """Whether a batch of `size` may run on the loop: others of its class did, lately, quickly."""
        pace = self._by_class.get(size.bit_length())
        return pace is not None and pace.is_on_loop and not self._was_far

    def ran(self, size: int, *, cpu_ns: int, wall_ns: int) -> None:
        """A batch of `size` took so long, wherever it ran: time on the processor, which is the model's own, and time by the clock.

        The first one is not judged: it finds everything cold.
        """
        if not self._is_warm:
            self._is_warm = True
        elif cpu_ns >= FAR_CPU_NS or wall_ns >= FAR_WALL_NS:
            self._was_far = True
            self._by_class.clear()
        elif not self._was_far:
            pace = self._by_class.get(size.bit_length())
            if pace is None:
                pace = self._by_class[size.bit_length()] = _Pace()
            pace.ran(cpu_ns)
