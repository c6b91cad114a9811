"""Latency percentiles by nearest rank: every figure reported is a latency that was really observed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Percentiles of one window, in milliseconds; all zero for an empty window."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The smallest value that at least `percent` of the values do not exceed.

    Args:
        ordered: Values in ascending order, at least one.
        percent: Above 0 and at most 100.

    Raises:
        ValueError: `ordered` is empty or `percent` is out of range.
    """
    if not ordered:
        raise ValueError("a percentile of no values")
    if not 0 < percent <= 100:
        raise ValueError(f"percent is {percent}: expected above 0 and at most 100")
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def summarise(latencies_ns: Sequence[int]) -> LatencySummary:
    """The percentiles of latencies in nanoseconds, in any order."""
    if not latencies_ns:
        return LatencySummary(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(latencies_ns)
    p50, p95, p99 = (percentile(ordered, each) / NS_PER_MS for each in (50, 95, 99))
    return LatencySummary(p50, p95, p99, ordered[-1] / NS_PER_MS)
