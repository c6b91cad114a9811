"""`AdmissionQueue`: large requests that wait until their bytes fit the byte budget, first come, first served.

A request waits while its sender is held back by flow control, and holds nothing of the budget meanwhile. It then reserves all its declared
bytes at once: two requests that are half received never wait for each other. Time is a parameter.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from stoker.backends.api.errors import Overloaded


class Outcome(IntEnum):
    """Whether the bytes of a request can be reserved."""

    #: They are reserved.
    RESERVED = 0
    #: Other requests of the connection hold too much: requests of other connections may go first.
    SHARE_FULL = 1
    #: The budget is used up: later requests must wait too.
    BUDGET_FULL = 2


class Applicant(Protocol):
    """A request that waits. Its methods are called on the event loop, and never from inside `AdmissionQueue.enter`."""

    def try_admit(self, size_bytes: int, slower_than: float) -> Outcome:
        """Reserves all `size_bytes` of the request, if they fit. Uploads of fewer than `slower_than` bytes per second may be evicted for
        them.
        """

    def admitted(self) -> None:
        """The bytes are reserved: the sender may go on."""

    def not_admitted(self, error: Overloaded) -> None:
        """The request has waited for its time, and must be rejected."""


class Ticket:
    """The place of one request in the queue.

    Attributes:
        applicant: The request.
        size_bytes: Bytes that it declares.
        begun_s: When it began to wait, and until when it may wait; in seconds of the loop's clock.
        deadline_s: See `begun_s`.
        outcome: The result of the last attempt.
    """

    __slots__ = ("applicant", "begun_s", "deadline_s", "outcome", "size_bytes")

    def __init__(self, applicant: Applicant, size_bytes: int, now_s: float, wait_s: float) -> None:
        self.applicant = applicant
        self.size_bytes = size_bytes
        self.begun_s = now_s
        self.deadline_s = now_s + wait_s
        self.outcome = Outcome.BUDGET_FULL


class AdmissionQueue:
    """Confined to: the event loop. INVARIANT: a request is admitted only if no earlier one waits for the budget.

    A request that waits only for the share of its connection lets requests of other connections pass.
    """

    __slots__ = ("_call_soon", "_is_due", "_most_waiting", "_stalled_bytes_per_s", "_tickets")

    def __init__(self, most_waiting: int, stalled_bytes_per_s: float) -> None:
        """At most `most_waiting` requests wait. Uploads below `stalled_bytes_per_s` are evicted at once if a request waits."""
        self._most_waiting = most_waiting
        self._stalled_bytes_per_s = stalled_bytes_per_s
        #: In the order of their arrival.
        self._tickets: dict[Ticket, None] = {}
        self._is_due = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._tickets)

    def enter(self, ticket: Ticket, call_soon: Callable[[Callable[[], None]], object]) -> bool:
        """Admits the request of `ticket` at once and returns True, or lets it wait and returns False.

        `call_soon` calls a function in the next iteration of the event loop: requests are admitted there after others have ended.

        Raises:
            Overloaded: it must wait, and as many wait as may.
        """
        if not any(other.outcome is Outcome.BUDGET_FULL for other in self._tickets):
            ticket.outcome = ticket.applicant.try_admit(ticket.size_bytes, self._stalled_bytes_per_s)
            if ticket.outcome is Outcome.RESERVED:
                return True
        if len(self._tickets) >= self._most_waiting:
            raise Overloaded(
                f"{_REASONS[Outcome.BUDGET_FULL]}, no room for {ticket.size_bytes} more, and {len(self._tickets)} requests wait already: "
                "try again",
                retry_after_s=1.0,
            )
        self._tickets[ticket] = None
        self._call_soon = call_soon
        return False

    def leave(self, ticket: Ticket) -> None:
        """Takes a request out: it waits no longer. Without effect if it was admitted."""
        if ticket in self._tickets:
            del self._tickets[ticket]
            # Later requests may have waited for this one.
            self.released()

    def released(self) -> None:
        """Bytes were released: requests that fit now are admitted in the next iteration of the event loop."""
        if self._tickets and not self._is_due and self._call_soon is not None:
            self._is_due = True
            self._call_soon(self.admit)

    def admit(self) -> None:
        """Admits the requests that fit now, in their order."""
        self._is_due = False
        admitted: list[Ticket] = []
        for ticket in list(self._tickets):
            ticket.outcome = ticket.applicant.try_admit(ticket.size_bytes, self._stalled_bytes_per_s)
            if ticket.outcome is Outcome.RESERVED:
                del self._tickets[ticket]
                admitted.append(ticket)
            elif ticket.outcome is Outcome.BUDGET_FULL:
                break
        for ticket in admitted:
            ticket.applicant.admitted()

    def sweep(self, now_s: float) -> None:
        """Admits the requests that fit, and ends those that have waited for their time; called regularly while requests wait."""
        self.admit()
        for ticket in [each for each in self._tickets if now_s >= each.deadline_s]:
            if ticket not in self._tickets:
                continue
            waited_s = ticket.deadline_s - ticket.begun_s
            # The last attempt evicts uploads that were too slow to transfer as much while this request has waited.
            ticket.outcome = ticket.applicant.try_admit(ticket.size_bytes, ticket.size_bytes / waited_s)
            del self._tickets[ticket]
            if ticket.outcome is Outcome.RESERVED:
                ticket.applicant.admitted()
            else:
                ticket.applicant.not_admitted(no_space(ticket, waited_s))
        self.released()


_REASONS: Final = {
    Outcome.SHARE_FULL: "the requests of this connection hold as many bytes as one connection may",
    Outcome.BUDGET_FULL: "the server holds as many request bytes as it may",
}


def no_space(ticket: Ticket, waited_s: float) -> Overloaded:
    """The error of a request that has waited for its time."""
    advice = "try again, or use more connections" if ticket.outcome is Outcome.SHARE_FULL else "try again"
    text = f"{_REASONS[ticket.outcome]}, no room for {ticket.size_bytes} more within {waited_s:g} s: {advice}"
    return Overloaded(text, retry_after_s=1.0)
