"""What became of the single responses of a decoupled model, by their position: how often, and how long each took.

A response's time runs from the one before it, that of the first from when its request was taken in. It cannot be told from outside how
much of it went into making the output ready, so all of it counts as computing.
"""

from dataclasses import dataclass
from typing import Final

from stoker.server.core.statistics import Duration, ResponseStatistics
from stoker.server.observability.histogram import FIRST_RESPONSE_BOUNDS_NS, Histogram

#: Positions that are told apart. What a model answers beyond them is not listed; its requests are counted all the same.
MOST_POSITIONS: Final = 1024


@dataclass(slots=True)
class _Count:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def frozen(self) -> Duration:
        return Duration(self.count, self.ns)


class _Position:
    """Responses at one position, over all requests."""

    __slots__ = ("cancel", "empty", "fail", "success")

    def __init__(self) -> None:
        self.success, self.fail, self.empty, self.cancel = _Count(), _Count(), _Count(), _Count()


class ResponseCounts:
    """Counts of one version. Confined to: the event loop.

    Attributes:
        first_response: Times from a request to its first response, in nanoseconds.
    """

    __slots__ = ("_positions", "first_response")

    def __init__(self) -> None:
        self._positions: list[_Position] = []
        self.first_response = Histogram(FIRST_RESPONSE_BOUNDS_NS)

    def answered(self, position: int, ns: int) -> None:
        """A response with outputs came."""
        if position == 0:
            self.first_response.observe(ns)
        if (found := self._at(position)) is not None:
            found.success.add(ns)

    def ended(self, position: int, ns: int) -> None:
        """The request ended well, after the response before `position`: the end is an empty response."""
        if (found := self._at(position)) is not None:
            found.empty.add(ns)

    def failed(self, position: int, ns: int) -> None:
        """An error came instead of a response."""
        if (found := self._at(position)) is not None:
            found.fail.add(ns)

    def cancelled(self, position: int, ns: int) -> None:
        """Nobody waited for it any more."""
        if (found := self._at(position)) is not None:
            found.cancel.add(ns)

    def snapshot(self) -> tuple[ResponseStatistics, ...]:
        """By position, from 0."""
        return tuple(
            ResponseStatistics(
                compute_infer=Duration(each.success.count + each.fail.count, each.success.ns + each.fail.ns),
                # Its share is in `compute_infer`.
                compute_output=Duration(each.success.count, 0),
                success=each.success.frozen(),
                fail=each.fail.frozen(),
                empty_response=each.empty.frozen(),
                cancel=each.cancel.frozen(),
            )
            for each in self._positions
        )

    def _at(self, position: int) -> _Position | None:
        if position >= MOST_POSITIONS:
            return None
        # Positions come one after another, so that the list grows by one at a time.
        while len(self._positions) <= position:
            self._positions.append(_Position())
        return self._positions[position]
