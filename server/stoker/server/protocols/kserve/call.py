"""What a handler may know of the call it answers, whatever carried it."""

from collections.abc import Mapping
from typing import Protocol


class Call(Protocol):
    """One RPC or HTTP request in progress.

    A client that goes away cancels the task its handler runs in, so that a handler needs no check while it waits.
    """

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata or headers, names in lower case."""

    @property
    def deadline_ns(self) -> int | None:
        """When the client stops waiting, on the engine's monotonic scale; None = never."""

    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
