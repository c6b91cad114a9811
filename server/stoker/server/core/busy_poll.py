"""`BusyPoll`: while one client sends a request as soon as it has its answer, the loop looks for the next one instead of going to sleep.

A thread that sleeps is some 50 us late where its core has gone idle, on a virtual machine above all: a quarter of what a quick request
takes from end to end. So after an answer that nothing else is in flight beside, the loop turns without waiting, for a short time, if the
requests before it would have come within that time. Whether that pays is measured all the while: a wait in vain ends it for a run of
requests that is twice as long each time, so that a client of another rhythm, or one that needs the very core that looks out for it, is
left alone. The idea is that of the halt polling of Linux's hypervisor (Documentation/virt/kvm/halt-polling.rst).
"""

from collections.abc import Callable
from typing import Final

#: How long it looks out, microseconds: a client that sends on has its next request here within 100 to 150.
DEFAULT_US: Final = 250
#: Requests in a row that come soon enough, before the first wait and at most.
FIRST_RUN: Final = 8
MOST_RUN: Final = 4096
#: So many found in a row make up for all waits in vain.
GOOD_RUN: Final = 256


class BusyPoll:
    """Confined to: the event loop."""

    __slots__ = ("_call_soon", "_completed_ns", "_in_flight", "_is_polling", "_most_ns", "_needed", "_now_ns", "_soon")

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], now_ns: Callable[[], int], in_flight: Callable[[], int], most_us: int
    ) -> None:
        """Looks out for `most_us` at a time.

        `call_soon` calls a function in the loop's next turn; `in_flight` says how many requests have no answer yet.
        """
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._in_flight = in_flight
        self._most_ns = most_us * 1_000
        #: When the last lone request was answered; 0 once the next is late, or runs in a thread.
        self._completed_ns = 0
        self._is_polling = False
        self._soon = 0
        self._needed = FIRST_RUN

    def is_single(self) -> bool:
        """Whether exactly one request is in flight: asked before the batch that a read has brought is run."""
        return self._in_flight() == 1

    def answered(self) -> None:
        """A lone request has run within the read that brought it: looks out for the next one, if that has mostly come soon."""
        if self._in_flight():
            self._completed_ns = 0  # it runs in a thread, which will wake the loop
            return
        if self._completed_ns:
            self._soon += 1
            if self._soon >= self._needed + GOOD_RUN:
                self._needed = FIRST_RUN
        self._completed_ns = self._now_ns()
        if self._soon >= self._needed and not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll)

    def on_read(self) -> None:
        """Something was read: a request, or what clients send besides, as the pings and window updates that follow many an answer."""
        if self._completed_ns and self._is_late():
            self._end_run()

    def _poll(self) -> None:
        """One turn of the loop that does not wait."""
        if not self._completed_ns or self._in_flight():
            self._is_polling = False
        elif self._is_late():
            self._end_run()
            self._is_polling = False
        elif self._soon >= self._needed:
            self._call_soon(self._poll)
        else:
            self._is_polling = False  # the wait was in vain, and a request answered, before this turn came

    def _is_late(self) -> bool:
        return self._now_ns() - self._completed_ns > self._most_ns

    def _end_run(self) -> None:
        """The next request has not come soon enough."""
        self._completed_ns = 0
        self._soon = 0
        if self._is_polling:
            self._needed = min(2 * self._needed, MOST_RUN)
