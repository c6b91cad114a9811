"""`OpenSequence`: a sequence in progress, and `Member`: one of its requests."""

from collections import deque
from collections.abc import Callable

from stoker.server.core.completion import Completion
from stoker.server.core.request import Done, InferRequest, InferResponse
from stoker.server.core.sequence import Array, SequenceMark
from stoker.server.core.timers import Timer
from stoker.server.scheduling.pending import Pending


class OpenSequence:
    """A sequence in progress. Confined to: the event loop.

    Attributes:
        id: The client's id of the sequence.
        states: The states for the next request, by input name.
        waiting: Requests behind the running one.
        running: The running request.
        idle: The timer that ends the sequence when it is idle too long.
        is_admitted: Whether it counts towards the bound on sequences in progress.
    """

    __slots__ = ("id", "idle", "is_admitted", "running", "states", "waiting")

    def __init__(self, sequence_id: int | str, states: dict[str, Array]) -> None:
        self.id = sequence_id
        self.states = states
        self.waiting: deque[Member] = deque()
        self.running: Member | None = None
        self.idle: Timer | None = None
        self.is_admitted = False

    def rest(self) -> None:
        """Cancels the idle timer."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None


class Member(Completion[InferResponse]):
    """The completion of one accepted request of a sequence. Confined to: the event loop.

    Attributes:
        sequence: The sequence.
        request: The request.
        mark: The request's place in the sequence.
        timeout_ns: When its queue timeout expires, nanoseconds; None: never.
        ended: Called once, when the request completes or is cancelled.
        expiry: The timer that expires the request while it waits for its turn.
        flight: The handle from the inner scheduler; None: the request waits for its turn.
    """

    __slots__ = ("_withdraw_from", "ended", "expiry", "flight", "mark", "request", "sequence", "timeout_ns")

    def __init__(
        self,
        sequence: OpenSequence,
        request: InferRequest,
        mark: SequenceMark,
        now_ns: int,
        done: Done,
        ended: Callable[[], None],
        withdraw: "Callable[[Member], None]",
    ) -> None:
        """The request was accepted at `now_ns`; `withdraw` cancels it."""
        super().__init__(done)
        self.sequence = sequence
        self.request = request
        self.mark = mark
        self.timeout_ns = now_ns + request.timeout_us * 1_000 if request.timeout_us else None
        self.ended = ended
        self.expiry: Timer | None = None
        self.flight: Pending | None = None
        self._withdraw_from = withdraw

    def _withdraw(self) -> None:
        self._withdraw_from(self)

    @property
    def has_run(self) -> bool:
        """Whether a worker has started it, so that it changes the model's state."""
        return self.flight is not None and self.flight.dispatched_ns > 0

    def silence(self) -> None:
        """Cancels the expiry timer."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
