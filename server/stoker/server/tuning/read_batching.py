"""`Reads`: runs the requests of a read at its end while only one connection sends.

A batch waits for the loop's next turn, so that requests of several connections share it. If only one connection sends, all requests for the
batch have arrived with the current read. The batch then runs at once, and its responses are sent with the write that ends the read
(docs/adr/0006-batch-window.md).
"""

import logging
from collections.abc import Callable

from stoker.server.tuning.busy_poll import BusyPoll
from stoker.server.tuning.constants import SINGLE_CONNECTION_READS

_log = logging.getLogger(__name__)


class Reads:
    """The reads of all connections of all frontends. Confined to: the event loop.

    A frontend calls `begin` and `end` around the requests of one read.

    Attributes:
        busy_poll: Polls for the next request of a connection that sends one request at a time; None: no polling.
    """

    __slots__ = ("_in_a_row", "_is_open", "_reader", "_waiting", "busy_poll")

    def __init__(self) -> None:
        self.busy_poll: BusyPoll | None = None
        #: `id` of the connection that read last; a reference would keep it in memory.
        self._reader = 0
        self._in_a_row = 0
        self._is_open = False
        self._waiting: list[Callable[[], None]] = []

    def begin(self, reader: object, *, is_whole: bool = True) -> None:
        """Begins the requests of one read of the connection `reader`.

        `is_whole`: whether the read returned all bytes that had arrived, so that no other read follows in the same turn of the loop.
        """
        if id(reader) != self._reader:
            self._reader = id(reader)
            self._in_a_row = 0
        elif self._in_a_row < SINGLE_CONNECTION_READS:
            self._in_a_row += 1
        else:
            self._is_open = is_whole
        if self.busy_poll is not None:
            self.busy_poll.on_read()

    def defer(self, callback: Callable[[], None]) -> bool:
        """Defers `callback` to the end of the current read; returns False if requests do not run at the end of this read."""
        if self._is_open:
            self._waiting.append(callback)
        return self._is_open

    def end(self) -> None:
        """Ends the read: calls the deferred callbacks. Callbacks that these would defer run in the loop's next turn."""
        self._is_open = False
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            poll = self.busy_poll
            # Before the batches run: with another request in flight, no poll is needed.
            is_single = poll is not None and poll.load.requests_in_flight == 1
            for callback in waiting:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - a defect of one scheduler must not affect others, or the connection
                    _log.exception("a callback deferred to the end of a read failed unexpectedly")
            if poll is not None and is_single:
                poll.completed()
