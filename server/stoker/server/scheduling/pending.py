"""`Pending`: one accepted request, which is also its caller's handle; the awaitable form of a callback; and `ReleaseOrder`, which delays
responses until every earlier request has its response (config.pbtxt `preserve_ordering`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from stoker.server.core.completion import Completion
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight
from stoker.server.core.tasks import Waiter


class Pending(Completion[InferResponse]):
    """The completion of one accepted request, with the attributes that the queue and the batcher need. Confined to: the event loop.

    The queue, the batch and the caller share one object for each request. It has slots, and `__init__` sets them without calling those of
    its bases.

    Attributes:
        request: The request; also its entry in the batch.
        ended: Called once when the request is over.
        dispatched_ns: When the request was put into a batch, nanoseconds.
        is_counted: Whether the outcome is counted; if `preserve_ordering` delays the response, it is counted before the response is
            released.
    """

    # fmt: off
    __slots__ = (
        "_withdraw_from", "deadline_ns", "dispatched_ns", "ended", "enqueued_ns", "is_counted", "is_delayed", "level", "request", "rows",
        "sequence", "shape_key", "timeout_ns",
    )
    # fmt: on

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
        """The request was accepted at `now_ns`; `done` receives the result, `withdraw` cancels the request."""
        self._callback = done
        self._result = None
        self.is_over = False
        self.rows = request.rows
        self.shape_key = shape_key
        self.level = level
        self.enqueued_ns = now_ns
        self.timeout_ns = timeout_ns
        self.deadline_ns = request.deadline_ns
        self.sequence = -1
        self.is_delayed = False
        self.request = request
        self.ended = ended
        self.dispatched_ns = 0
        self.is_counted = False
        self._withdraw_from = withdraw

    def _withdraw(self) -> None:
        self.request.is_cancelled = True
        self._withdraw_from(self)


async def outcome_of(submit: Callable[[InferRequest, Done], InFlight], request: InferRequest) -> InferResponse:
    """Awaits the result of `submit` for `request`; cancelling the caller cancels the request.

    Raises:
        ServingError: from `submit`, or the request's result.
    """
    waiter = Waiter[InferResponse]()
    flight = submit(request, waiter)
    try:
        return await waiter.outcome()
    except asyncio.CancelledError:
        flight.cancel()
        raise


EntryT = TypeVar("EntryT")
OutcomeT = TypeVar("OutcomeT")


class ReleaseOrder(Generic[EntryT, OutcomeT]):
    """Releases outcomes in the order in which `expect` was called."""

    def __init__(self, release: Callable[[EntryT, OutcomeT], None]) -> None:
        self._release = release
        self._expected: OrderedDict[int, tuple[EntryT, list[OutcomeT]]] = OrderedDict()

    def expect(self, entry: EntryT) -> None:
        """Adds `entry`, which will have an outcome."""
        self._expected[id(entry)] = (entry, [])

    def complete(self, entry: EntryT, outcome: OutcomeT) -> None:
        """Sets the outcome of `entry`, and releases all outcomes that are due."""
        held = self._expected.get(id(entry))
        if held is not None:
            held[1].append(outcome)
            self._drain()

    def forget(self, entry: EntryT) -> None:
        """Removes the cancelled `entry`, so that it delays no other."""
        if self._expected.pop(id(entry), None) is not None:
            self._drain()

    def _drain(self) -> None:
        while self._expected:
            entry, outcome = next(iter(self._expected.values()))
            if not outcome:
                return
            self._expected.popitem(last=False)
            self._release(entry, outcome[0])
