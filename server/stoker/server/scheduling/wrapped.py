"""`ModelScheduler`: the interface of the schedulers of a loaded version. `WrappedScheduler`: what those have in common that stand in front
of another one.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from stoker.server.core.request import Done, InferRequest, InFlight


class ModelScheduler(Protocol):
    """A scheduler of one loaded version; see `Scheduler`."""

    on_idle: Callable[[], None] | None

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete."""

    @property
    def outage(self) -> str:
        """See `Scheduler.outage`."""

    @property
    def is_lost(self) -> bool:
        """See `Scheduler.is_lost`."""

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """See `Scheduler.submit`."""

    def abandon(self, why: str) -> None:
        """See `Scheduler.abandon`."""

    def close(self) -> Awaitable[None]:
        """See `Scheduler.close`."""


InnerT = TypeVar("InnerT", bound=ModelScheduler)


class WrappedScheduler(Generic[InnerT]):
    """Passes everything but `submit` to another scheduler. Confined to: the event loop.

    Attributes:
        inner: The wrapped scheduler.
    """

    def __init__(self, inner: InnerT) -> None:
        """Stands in front of `inner`."""
        self.inner = inner

    @property
    def on_idle(self) -> Callable[[], None] | None:
        """See `Scheduler.on_idle`."""
        return self.inner.on_idle

    @on_idle.setter
    def on_idle(self, callback: Callable[[], None] | None) -> None:
        self.inner.on_idle = callback

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete, those among them that this scheduler made included."""
        return self.inner.in_flight

    @property
    def outage(self) -> str:
        """See `Scheduler.outage`."""
        return self.inner.outage

    @property
    def is_lost(self) -> bool:
        """See `Scheduler.is_lost`."""
        return self.inner.is_lost

    def abandon(self, why: str) -> None:
        """See `Scheduler.abandon`."""
        self.inner.abandon(why)

    def close(self) -> Awaitable[None]:
        """See `Scheduler.close`."""
        return self.inner.close()
