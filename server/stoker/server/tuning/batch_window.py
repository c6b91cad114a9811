"""`BatchWindow`: for how many turns of the event loop a batch waits for requests that arrived together with its first. Pure.

It sets no timer and never sleeps: in those turns the loop takes in other requests (docs/adr/0006-batch-window.md).
"""

from stoker.server.tuning.constants import WINDOW_NS, WINDOW_SINGLE_REQUESTS


class BatchWindow:
    """Confined to: the event loop."""

    __slots__ = ("_full_rows", "_left", "_max_ticks", "_single_requests", "_until_ns")

    def __init__(self, max_ticks: int, full_rows: int) -> None:
        """`max_ticks`: turns that a batch waits at most. A batch of `full_rows` rows does not wait."""
        self._max_ticks = max_ticks
        self._full_rows = full_rows
        self._left = 0
        self._single_requests = 0
        self._until_ns = 0

    def arrived(self, meets_others: bool) -> None:
        """A request arrived; `meets_others`: whether others waited or ran."""
        self._single_requests = 0 if meets_others else self._single_requests + 1

    def begin(self, now_ns: int) -> None:
        """The first request of a batch has arrived."""
        self._left = self._max_ticks if self._single_requests <= WINDOW_SINGLE_REQUESTS else 1
        self._until_ns = now_ns + WINDOW_NS

    def open_for_tick(self) -> None:
        """Opens the window for one turn."""
        self._left = 1

    def turn(self, rows: int) -> bool:
        """One turn has passed and `rows` rows wait. Returns whether it was the last one; `is_over` may end the window earlier."""
        self._left -= 1
        return self._left <= 0 or rows >= self._full_rows

    def is_over(self, now_ns: int) -> bool:
        """Whether the window has lasted `WINDOW_NS`."""
        return now_ns >= self._until_ns
