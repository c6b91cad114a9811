"""What one request holds of the budget of bytes in flight, and what all requests of its connection hold."""

from types import TracebackType

from stoker.backends.api.errors import Overloaded, TooLarge
from stoker.server.core.byte_budget import ByteBudget, Upload

#: The error for an upload that was ended because the budget is full and it is the slowest.
EVICTED = "the server holds as many request bytes as it may, and this request was the slowest to arrive: try again"


class ConnectionShare:
    """What the large requests of one connection hold together. Confined to: the event loop.

    Several may hold half of the budget; a single one may hold more, while it is the only large one of its connection. Small requests do not
    count: those of other users of a proxy share the connection, and their number is bounded.

    Attributes:
        held_bytes: What the large requests hold.
    """

    __slots__ = ("_most_bytes", "_small_bytes", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._most_bytes = budget.share_bytes
        self._small_bytes = budget.small_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Takes `size_bytes` for a request that holds `held_bytes` already.

        Raises:
            Overloaded: other requests of the connection hold too much.
        """
        own_bytes = self.counted(held_bytes)
        whole_bytes = self.held_bytes - own_bytes + self.counted(held_bytes + size_bytes)
        if whole_bytes > self._most_bytes and whole_bytes > self.held_bytes > own_bytes:
            raise Overloaded(
                f"the requests of this connection hold {self.held_bytes} bytes, no room for {size_bytes} more: one connection may hold "
                f"{self._most_bytes}; try again, or use more connections",
                retry_after_s=1.0,
            )
        self.held_bytes = whole_bytes

    def give_back(self, size_bytes: int, held_bytes: int) -> None:
        """Gives back `size_bytes` of a request that holds `held_bytes`."""
        self.held_bytes += self.counted(held_bytes - size_bytes) - self.counted(held_bytes)

    def counted(self, size_bytes: int) -> int:
        """How much of a request that holds `size_bytes` counts."""
        return size_bytes if size_bytes > self._small_bytes else 0


class Reservation:
    """A context manager that gives back at its end all that was taken. Confined to: the event loop.

    Attributes:
        budget: What it takes from.
        held_bytes: What it holds.
    """

    __slots__ = ("_requester", "_share", "budget", "held_bytes")

    def __init__(self, budget: ByteBudget, share: ConnectionShare | None = None, requester: Upload | None = None) -> None:
        """`share` is the share of the request's connection (None: none), `requester` the upload it is (None: no upload)."""
        self.budget = budget
        self._share = share
        self._requester = requester
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Takes `size_bytes` more.

        Raises:
            TooLarge: the request would hold more than any may. Overloaded: they do not fit.
        """
        held_bytes = self.held_bytes
        if held_bytes + size_bytes > self.budget.most_request_bytes:
            raise too_much(held_bytes + size_bytes, self.budget.most_request_bytes)
        share = self._share
        if share is not None:
            share.take(size_bytes, held_bytes)
        if not self.budget.reserve(size_bytes, held_bytes, self._requester):
            if share is not None:
                share.give_back(size_bytes, held_bytes + size_bytes)
            raise budget_exhausted(size_bytes)
        self.held_bytes = held_bytes + size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives back a part of what was taken."""
        self.budget.release(size_bytes, self.held_bytes)
        if self._share is not None:
            self._share.give_back(size_bytes, self.held_bytes)
        self.held_bytes -= size_bytes

    def release(self) -> None:
        """Gives all of it back."""
        if self.held_bytes:
            self.give_back(self.held_bytes)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def budget_exhausted(size_bytes: int) -> Overloaded:
    """The error for a request whose `size_bytes` do not fit beside those in flight."""
    return Overloaded(f"the server holds as many request bytes as it may, no room for {size_bytes} more: try again", retry_after_s=1.0)


def too_much(size_bytes: int, most_bytes: int) -> TooLarge:
    """The error for a request that can never be served."""
    return TooLarge(f"the request takes {size_bytes} bytes of memory, more than the {most_bytes} that one request may take")


def evicted() -> Overloaded:
    """The error for a request that was ended to make room for others."""
    return Overloaded(EVICTED, retry_after_s=1.0)
