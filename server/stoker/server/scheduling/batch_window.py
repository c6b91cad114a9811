"""`BatchWindow`: for how many turns of the event loop a batch waits for requests that arrived together with its first. Pure.

No timer, and nothing slept: the turns are those in which other requests are being taken in (docs/adr/0006).
"""

#: Turns, where the front hands over requests that arrived together one at a time, some turns apart, as grpc.aio does. On an idle loop they
#: take some tens of microseconds. A front that hands over all of a read in one turn needs one.
WINDOW_TICKS = 32
#: On a busy loop turns are long, and time decides, in nanoseconds.
WINDOW_NS = 1_000_000
#: After so many requests in a row that met no other, batches stop gathering: a client that sends one at a time would wait for nobody.
SINGLE_REQUESTS = 16


class BatchWindow:
    """Confined to: the event loop."""

    __slots__ = ("_full_rows", "_left", "_max_ticks", "_single_requests", "_until_ns")

    def __init__(self, max_ticks: int, full_rows: int) -> None:
        """Batches of `full_rows` rows wait for nothing."""
        self._max_ticks = max_ticks
        self._full_rows = full_rows
        self._left = 0
        self._single_requests = 0
        self._until_ns = 0

    def arrived(self, meets_others: bool) -> None:
        """A request came, while others waited or ran or not."""
        self._single_requests = 0 if meets_others else self._single_requests + 1

    def begin(self, now_ns: int) -> None:
        """The first request of a batch is here."""
        self._left = self._max_ticks if self._single_requests <= SINGLE_REQUESTS else 1
        self._until_ns = now_ns + WINDOW_NS

    def open_for_tick(self) -> None:
        """A batch that waited for the loop only, and waits one turn."""
        self._left = 1

    def turn(self, rows: int) -> bool:
        """One turn has passed and `rows` rows wait; whether it was the last one, if time does not say otherwise."""
        self._left -= 1
        return self._left <= 0 or rows >= self._full_rows

    def is_over(self, now_ns: int) -> bool:
        """Whether time says that the batch goes."""
        return now_ns >= self._until_ns
