"""Packing: which sequences share a device batch, and where in its rows each one lies.

A packed model takes `rows` rows of `row_length` tokens. `Packing` puts items, in the order in which they come, into the open pack, and says
when the pack is to be run: it holds as many items as it may, the next one does not fit, or its window is over. Time is a parameter; there
is neither a thread nor a clock here.

Algorithms (PopRT's names):
    end_to_end: one item behind the other over all rows; an item may go over the end of a row.
    next_fit: into the row of the item before, else into the next row; items stay whole.
    first_fit: into the first row with enough space; items stay whole.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PackAlgorithm(enum.Enum):
    """Where the next item goes."""

    end_to_end = 0
    next_fit = 1
    first_fit = 2


@dataclass(frozen=True, slots=True)
class RowShape:
    """The tokens of one device batch.

    Attributes:
        rows: How many rows there are.
        row_length: Tokens in each.
        gap: Tokens that stay free between neighbours of a row.
    """

    rows: int
    row_length: int
    gap: int = 0

    @property
    def tokens(self) -> int:
        """Of all rows together."""
        return self.rows * self.row_length


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """One item of a pack.

    Attributes:
        item: What was given.
        lengths: Its tokens, a number for each group of inputs.
        starts: Where they begin, for each group: row x row_length + offset.
    """

    item: Item
    lengths: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pack(Generic[Item]):
    """Items that run together, in the order in which they came."""

    items: tuple[Placed[Item], ...]


class _Rows:
    """The rows of one group of inputs in the open pack."""

    def __init__(self, shape: RowShape, algorithm: PackAlgorithm) -> None:
        self._shape = shape
        self._is_whole = algorithm is not PackAlgorithm.end_to_end
        self._looks_back = algorithm is PackAlgorithm.first_fit
        length = shape.row_length if self._is_whole else shape.tokens
        self._length = length
        self._used = [0] * (shape.rows if self._is_whole else 1)
        self._current = 0

    def find(self, length: int) -> int | None:
        """The row for `length` more tokens, or None."""
        first = 0 if self._looks_back else self._current
        return next((row for row in range(first, len(self._used)) if self._start(row) + length <= self._length), None)

    def take(self, row: int, length: int) -> int:
        """Puts `length` tokens into `row`; returns where they begin among all tokens of the batch."""
        start = self._start(row)
        self._used[row] = start + length
        self._current = row
        return row * self._length + start

    def _start(self, row: int) -> int:
        return self._used[row] + self._shape.gap if self._used[row] else 0


class Packing(Generic[Item]):
    """Forms packs. INVARIANT: every item added is in exactly one pack, and packs hold items in the order in which they were added."""

    def __init__(
        self, shapes: Sequence[RowShape], algorithm: PackAlgorithm = PackAlgorithm.next_fit, *, max_items: int, window_ns: int
    ) -> None:
        """Starts empty.

        Args:
            shapes: Of each group of inputs whose lengths belong together.
            algorithm: Where items go.
            max_items: Items that one pack holds at most (`max_valid_num`).
            window_ns: How long the first item of a pack waits for others at most.

        Raises:
            ValueError: a size is below 1, or the window below 0.
        """
        if not shapes or any(min(each.rows, each.row_length) < 1 or each.gap < 0 for each in shapes):
            raise ValueError(f"a pack needs rows of 1 token or more, not {list(shapes)}")
        if max_items < 1:
            raise ValueError(f"a pack holds 1 item or more, not {max_items}")
        if window_ns < 0:
            raise ValueError(f"the window of a pack is 0 ns or more, not {window_ns}")
        self._shapes = tuple(shapes)
        self._algorithm = algorithm
        self._max_items = max_items
        self._window_ns = window_ns
        self._open: list[Placed[Item]] = []
        self._rows: list[_Rows] = []
        self._deadline_ns: int | None = None

    @property
    def deadline_ns(self) -> int | None:
        """When the open pack is due; None if there is none."""
        return self._deadline_ns

    def longest(self, group: int = 0) -> int:
        """Tokens that an item may have at most."""
        shape = self._shapes[group]
        return shape.tokens if self._algorithm is PackAlgorithm.end_to_end else shape.row_length

    def add(self, item: Item, lengths: Sequence[int], now_ns: int) -> list[Pack[Item]]:
        """Puts an item into the open pack.

        Args:
            item: Anything.
            lengths: Its tokens, a number for each group.
            now_ns: The time.

        Returns:
            Packs that are complete by this, none, one or two: the open one if the item did not fit it, the item's own if that is full.

        Raises:
            ValueError: these lengths fit into no pack.
        """
        if len(lengths) != len(self._shapes):
            raise ValueError(f"{len(lengths)} lengths given for {len(self._shapes)} group(s) of inputs")
        for group, length in enumerate(lengths):
            if not 1 <= length <= self.longest(group):
                raise ValueError(f"an item of {length} tokens does not fit: 1 to {self.longest(group)} do")
        complete: list[Pack[Item]] = []
        starts = self._find_starts(lengths)
        if starts is None:
            complete += self.flush()
            starts = self._find_starts(lengths)
        assert starts is not None, "an empty pack has room for any item of a length that was checked"
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + self._window_ns
        self._open.append(Placed(item, tuple(lengths), starts))
        if len(self._open) >= self._max_items:
            complete += self.flush()
        return complete

    def due(self, now_ns: int) -> list[Pack[Item]]:
        """The open pack if its window is over."""
        return self.flush() if self._deadline_ns is not None and now_ns >= self._deadline_ns else []

    def flush(self) -> list[Pack[Item]]:
        """The open pack, if there is one."""
        packs = [Pack(tuple(self._open))] if self._open else []
        self._open, self._rows, self._deadline_ns = [], [], None
        return packs

    def _find_starts(self, lengths: Sequence[int]) -> tuple[int, ...] | None:
        if not self._rows:
            self._rows = [_Rows(shape, self._algorithm) for shape in self._shapes]
        found = [rows.find(length) for rows, length in zip(self._rows, lengths, strict=True)]
        if any(row is None for row in found):
            return None
        return tuple(rows.take(row, length) for rows, row, length in zip(self._rows, found, lengths, strict=True) if row is not None)
