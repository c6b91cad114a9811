"""`OpenSequence` and `Member`: a sequence in progress, or waiting to be, and one request of it."""

from collections import deque
from collections.abc import Callable

from stoker.server.core.request import Done, InferRequest
from stoker.server.core.sequence import Array, SequenceMark
from stoker.server.core.timers import Timer
from stoker.server.scheduling.pending import Pending


class OpenSequence:
    """Confined to: the event loop.

    Attributes:
        id: What clients call it.
        states: What the next request is given, by input name.
        waiting: Requests behind the one that runs.
        running: The one that runs.
        idle: Rings when nothing has come for too long.
        is_admitted: Whether it counts among those in progress.
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
        """Nothing waits any more for it to be idle too long."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None


class Member:
    """One accepted request of a sequence; the `InFlight` of its caller. Confined to: the event loop.

    Attributes:
        sequence: Its sequence.
        request: What was asked.
        mark: Its place in the sequence.
        timeout_ns: When its time in the queue runs out; None: never.
        done: Takes the answer.
        ended: Called once, when it was answered or withdrawn.
        expiry: Rings when it has waited for its turn too long.
        flight: What the inner scheduler gave for it; None: it waits for its turn.
        is_over: Whether it was answered or withdrawn.
    """

    __slots__ = ("_withdraw", "done", "ended", "expiry", "flight", "is_over", "mark", "request", "sequence", "timeout_ns")

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
        """Accepted at `now_ns`; `withdraw` takes it back."""
        self.sequence = sequence
        self.request = request
        self.mark = mark
        self.timeout_ns = now_ns + request.timeout_us * 1_000 if request.timeout_us else None
        self.done = done
        self.ended = ended
        self.expiry: Timer | None = None
        self.flight: Pending | None = None
        self.is_over = False
        self._withdraw = withdraw

    def cancel(self) -> None:
        if not self.is_over:
            self._withdraw(self)

    @property
    def has_run(self) -> bool:
        """Whether a worker has taken it, so that the model sees it."""
        return self.flight is not None and self.flight.dispatched_ns > 0

    def silence(self) -> None:
        """Nothing waits any more for it to have waited too long."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
