"""`BusyPoll`: polls for the next request of a closed-loop client instead of sleeping.

A sleeping thread wakes up some 50 us late if its core has become idle, especially on a virtual machine: a quarter of the latency of a quick
request. After a response with no other request in flight, the event loop therefore polls without sleeping, for at most `most_us`, if recent
requests arrived within that time. Each unsuccessful poll doubles the number of prompt requests required before the next poll. The loop
therefore seldom polls for a client that sends later, or that runs on the same core. Linux's halt polling of guests works in the same way
(Documentation/virt/kvm/halt-polling.rst).
"""

from collections.abc import Callable
from typing import Protocol

from stoker.server.tuning.constants import BUSY_POLL_FIRST_RUN, BUSY_POLL_GOOD_RUN, BUSY_POLL_MOST_RUN


class Load(Protocol):
    """The server's load, as the poller needs it.

    Attributes:
        requests_in_flight: Requests that have no response yet.
    """

    requests_in_flight: int


class BusyPoll:
    """Polls for the next request of a client that sends one at a time. Confined to: the event loop.

    Attributes:
        load: The server's load.
    """

    __slots__ = ("_call_soon", "_completed_ns", "_is_polling", "_most_ns", "_needed", "_now_ns", "_soon", "load")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], now_ns: Callable[[], int], load: Load, most_us: int) -> None:
        """Makes a poller.

        Args:
            call_soon: Calls a function in the loop's next turn.
            now_ns: The clock, nanoseconds.
            load: Gives the number of requests in flight.
            most_us: Longest poll, microseconds.
        """
        self._call_soon = call_soon
        self._now_ns = now_ns
        self.load = load
        self._most_ns = most_us * 1_000
        #: When the last single request completed; 0 if the next one is late or runs in a thread.
        self._completed_ns = 0
        self._is_polling = False
        self._soon = 0
        self._needed = BUSY_POLL_FIRST_RUN

    def completed(self) -> None:
        """Starts a poll after a single request that ran at the end of its read, if recent ones were prompt."""
        if self.load.requests_in_flight:
            self._completed_ns = 0  # the request runs in a thread, which will wake the loop
            return
        if self._completed_ns:
            self._soon += 1
            if self._soon >= self._needed + BUSY_POLL_GOOD_RUN:
                self._needed = BUSY_POLL_FIRST_RUN
        self._completed_ns = self._now_ns()
        if self._soon >= self._needed and not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll)

    def on_read(self) -> None:
        """Bytes were read: a request, or control frames such as the PING and WINDOW_UPDATE that follow a response."""
        if self._completed_ns and self._now_ns() - self._completed_ns > self._most_ns:
            self._end_run()

    def _poll(self) -> None:
        """One turn of the loop without sleeping."""
        if not self._completed_ns or self.load.requests_in_flight:
            self._is_polling = False
        elif self._now_ns() - self._completed_ns > self._most_ns:
            self._end_run()
            self._is_polling = False
        elif self._soon >= self._needed:
            self._call_soon(self._poll)
        else:
            self._is_polling = False  # the poll was unsuccessful, and another request completed before this turn

    def _end_run(self) -> None:
        """Ends the run of prompt requests: the next request was late."""
        self._completed_ns = 0
        self._soon = 0
        if self._is_polling:
            self._needed = min(2 * self._needed, BUSY_POLL_MOST_RUN)
