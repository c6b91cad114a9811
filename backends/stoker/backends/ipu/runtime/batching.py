"""`BatchPlan`: which rows of which requests make up a batch. Pure: no threads, and time is a parameter.

Whole batches of a request go at once. What remains of it waits in an open batch until later requests fill it, or until the batch is due;
a due batch goes as it is, and the rest of its rows are padding. Compiled batch 4 and requests of 1, 4 and 7 rows: the row waits, the four
go at once, four of the seven go at once, and the last three fill the batch that waits.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Piece(Generic[R]):
    """Rows `start` to `stop` of a request, at `offset` in their batch."""

    request: R
    start: int
    stop: int
    offset: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


@dataclass(slots=True)
class Batch(Generic[R]):
    """Pieces of one batch, in the order of their rows."""

    pieces: list[Piece[R]] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimeouts:
    """How long an open batch waits for later requests, in nanoseconds; None: for ever.

    Attributes:
        partial_ns: While the batch of some replica is incomplete.
        data_parallel_ns: While whole batches of some replicas wait for those of the others.
    """

    partial_ns: int | None
    data_parallel_ns: int | None


class BatchPlan(Generic[R]):
    """The open batch of one sub-graph. One thread at a time."""

    def __init__(self, capacity: int, timeouts: BatchTimeouts, *, replicas: int = 1) -> None:
        """An empty plan.

        Args:
            capacity: Rows of a batch, all replicas together.
            timeouts: How long an open batch waits.
            replicas: How many replicas share a batch, in equal parts.

        Raises:
            ValueError: a batch without rows, or one that cannot be shared equally.
        """
        if capacity < 1 or replicas < 1 or capacity % replicas:
            raise ValueError(f"a batch of {capacity} rows cannot be shared by {replicas} replicas")
        self.capacity = capacity
        self._replica_rows = capacity // replicas
        self._timeouts = timeouts
        self._open: Batch[R] = Batch()
        self._since_ns = 0

    def count_pieces(self, rows: int) -> int:
        """How many pieces `add` would cut a request of `rows` rows into."""
        whole, rest = divmod(rows, self.capacity)
        is_split = rest > self.capacity - self._open.rows
        return whole + (rest > 0) + is_split

    def add(self, request: R, rows: int, now_ns: int) -> list[Batch[R]]:
        """Takes a request of `rows` rows; the batches that are full now."""
        whole = rows - rows % self.capacity
        full = [Batch([Piece(request, at, at + self.capacity, 0)], self.capacity) for at in range(0, whole, self.capacity)]
        at = whole
        while at < rows:
            if not self._open.rows:
                self._since_ns = now_ns
            size = min(rows - at, self.capacity - self._open.rows)
            self._open.pieces.append(Piece(request, at, at + size, self._open.rows))
            self._open.rows += size
            at += size
            if self._open.rows == self.capacity:
                full.append(self.take())
        return full

    def due_ns(self) -> int | None:
        """When the open batch shall go as it is; None: not by itself."""
        if not self._open.rows:
            return None
        is_partial = self._open.rows % self._replica_rows > 0
        timeout_ns = self._timeouts.partial_ns if is_partial else self._timeouts.data_parallel_ns
        return None if timeout_ns is None else self._since_ns + timeout_ns

    def take(self) -> Batch[R]:
        """Closes the open batch, full or not."""
        batch, self._open = self._open, Batch()
        return batch
