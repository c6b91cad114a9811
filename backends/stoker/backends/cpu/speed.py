"""How fast two functions are beside each other: pairs of short windows, in random order within each pair.

Whatever else the machine does meets both alike, and neither always runs first. The figures are medians; their uncertainty is that of the
median of the pairs' ratios, and figures are printed to the digits that it leaves.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.backends.api.clock import Clock, SystemClock

PAIRS: Final = 24
#: Pairs of a model so slow that all would take longer than `LONGEST_S`.
LEAST_PAIRS: Final = 6
WINDOW_S: Final = 0.08
LONGEST_S: Final = 20.0
#: Half the width of the interval that holds the median of repeated medians in 95 of 100 cases, in quartile distances / sqrt(n).
#: (McGill, Tukey, Larsen: Variations of Box Plots, 1978)
_NOTCH: Final = 1.57


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of a call in each window, pair by pair.

    Attributes:
        source: Of the source.
        compiled: Of what was compiled.
    """

    source: tuple[float, ...]
    compiled: tuple[float, ...]

    @property
    def source_s(self) -> float:
        """Median time of a call of the source."""
        return statistics.median(self.source)

    @property
    def compiled_s(self) -> float:
        """Median time of a call of what was compiled."""
        return statistics.median(self.compiled)

    @property
    def ratio(self) -> float:
        """How many times as fast the compiled one is, by the medians."""
        return self.source_s / self.compiled_s

    @property
    def ratios(self) -> list[float]:
        """The same of each pair of windows."""
        return [one / other for one, other in zip(self.source, self.compiled, strict=True)]

    @property
    def error(self) -> float:
        """Uncertainty of `ratio` (95 %)."""
        return uncertainty(self.ratios)


def measure(source: Callable[[int], object], compiled: Callable[[int], object], *, seed: int = 0, clock: Clock | None = None) -> Speeds:
    """Times both, each called with the number of the call in its window.

    Args:
        source: What the other is measured against.
        compiled: What is timed.
        seed: Of the order in each pair.
        clock: Another one for tests.
    """
    order, ticking = random.Random(seed), clock or SystemClock()  # noqa: S311 - of windows, not of secrets
    found: tuple[list[float], list[float]] = ([], [])
    functions = (source, compiled)
    for function in functions:  # warm: the first calls allocate
        _call_s(function, ticking)
    start = ticking.now_ns()
    for pair in range(PAIRS):
        if pair >= LEAST_PAIRS and ticking.now_ns() - start > LONGEST_S * 1e9:
            break
        for which in order.sample((0, 1), 2):
            found[which].append(_call_s(functions[which], ticking))
    return Speeds(tuple(found[0]), tuple(found[1]))


def _call_s(function: Callable[[int], object], clock: Clock) -> float:
    """Mean of the calls of one window, of which there is one at least."""
    calls, start = 0, clock.now_ns()
    while calls == 0 or clock.now_ns() - start < WINDOW_S * 1e9:
        function(calls)
        calls += 1
    return max(clock.now_ns() - start, 1) / 1e9 / calls


def uncertainty(values: Sequence[float]) -> float:
    """Of the median of `values` (95 %); 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return _NOTCH * (upper - lower) / math.sqrt(len(values))


def shown(value: float, error: float, *, most: int = 3) -> str:
    """`value` to the digit that `error` leaves uncertain, with `most` significant digits at most and never an exponent."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    first = math.floor(math.log10(value))
    last = math.floor(math.log10(error)) if error > 0 else first - most + 1
    digit = min(max(last, first - most + 1), first)
    return f"{round(value, -digit):.{max(-digit, 0)}f}"
