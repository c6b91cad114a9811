"""`Reads`: while one connection alone sends, what its read has brought is run at the end of that read, not in the loop's next turn.

A batch waits for the loop's next turn, because requests that came on several connections at once are to share it. Where only one connection
sends, all that the batch could wait for has come with the read in hand: it runs at once, and its answers leave by the write that ends the
read (docs/adr/0006).
"""

import logging
from collections.abc import Callable
from typing import Final

from stoker.server.core.busy_poll import BusyPoll

#: After so many reads in a row of one connection, none of another between them, it counts as the only one that sends.
READS_IN_A_ROW: Final = 16
_log = logging.getLogger(__name__)


class Reads:
    """The reads of all connections of all fronts. Confined to: the event loop.

    A front calls `begin` and `end` around handing over what one read has brought.

    Attributes:
        busy_poll: Looks out for the next request of a connection that sends one at a time; None: nobody does.
    """

    __slots__ = ("_in_a_row", "_is_open", "_reader", "_waiting", "busy_poll")

    def __init__(self) -> None:
        self.busy_poll: BusyPoll | None = None
        #: Who read last, by its id: nobody is kept in memory for it.
        self._reader = 0
        self._in_a_row = 0
        self._is_open = False
        self._waiting: list[Callable[[], None]] = []

    def begin(self, reader: object, *, is_whole: bool = True) -> None:
        """What a read of the connection `reader` has brought is handed over from now on.

        `is_whole`: whether nothing of what has come is left for another read in the same turn of the loop, so that nobody need wait for it.
        """
        if id(reader) != self._reader:
            self._reader = id(reader)
            self._in_a_row = 0
        elif self._in_a_row < READS_IN_A_ROW:
            self._in_a_row += 1
        else:
            self._is_open = is_whole
        if self.busy_poll is not None:
            self.busy_poll.on_read()

    def defer(self, callback: Callable[[], None]) -> bool:
        """Keeps `callback` for the end of the read in hand; False: there is none that it could be kept for."""
        if self._is_open:
            self._waiting.append(callback)
        return self._is_open

    def end(self) -> None:
        """All of the read is handed over: calls what was put off. What that puts off in turn waits for the loop."""
        self._is_open = False
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            poll = self.busy_poll
            is_single = poll is not None and poll.is_single()
            for callback in waiting:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - a defect of one scheduler: others, and the connection, are none the worse for it
                    _log.exception("what was put off to the end of a read failed unexpectedly")
            if poll is not None and is_single:
                poll.answered()
