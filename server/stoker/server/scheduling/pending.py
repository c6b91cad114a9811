"""`Pending`: one accepted request on its way, which is also what its caller holds of it; and the awaitable made of a callback."""

import asyncio
from collections.abc import Callable, Hashable

from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight
from stoker.server.core.tasks import Waiter
from stoker.server.scheduling.queue import QueueEntry


class Pending(QueueEntry):
    """A queue entry with its request and with whom to tell. The `InFlight` of its request. Confined to: the event loop.

    One object for the queue, the batch and the caller, made for every request: it has slots, and is filled by hand.

    Attributes:
        request: What was asked; it is its own share of the batch.
        done: Takes the answer.
        ended: Called once, when it was answered or withdrawn.
        dispatched_ns: When it went into a batch.
        is_counted: Whether its outcome was recorded: that happens before it is released, where `preserve_ordering` holds it back.
        is_over: Whether it was answered or withdrawn: whatever comes later is dropped.
    """

    __slots__ = ("_withdraw", "dispatched_ns", "done", "ended", "is_counted", "is_over", "request")

    def __init__(
        self,
        request: InferRequest,
        shape_key: Hashable,
        level: int,
        now_ns: int,
        timeout_ns: int | None,
        done: Done,
        ended: Callable[[], None],
        withdraw: "Callable[[Pending], None]",
    ) -> None:
        """Accepted at `now_ns`; `withdraw` takes it back."""
        self.rows = request.rows
        self.shape_key = shape_key
        self.level = level
        self.enqueued_ns = now_ns
        self.timeout_ns = timeout_ns
        self.deadline_ns = request.deadline_ns
        self.sequence = -1
        self.is_delayed = False
        self.request = request
        self.done = done
        self.ended = ended
        self.dispatched_ns = 0
        self.is_counted = False
        self.is_over = False
        self._withdraw = withdraw

    def cancel(self) -> None:
        if not self.is_over:
            self._withdraw(self)


async def outcome_of(submit: Callable[[InferRequest, Done], InFlight], request: InferRequest) -> InferResponse:
    """What `submit` answers to `request`; cancelling the caller cancels the request.

    Raises:
        ServingError: as `submit` raises or answers.
    """
    waiter = Waiter[InferResponse]()
    flight = submit(request, waiter)
    try:
        return await waiter.outcome()
    except asyncio.CancelledError:
        flight.cancel()
        raise
