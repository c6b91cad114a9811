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
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from stoker.backends.ipu.runtime.runtime_config import RunnerType, RuntimeConfig


class PackAlgorithm(enum.Enum):
    """Where the next sequence is placed."""

    end_to_end = 0
    next_fit = 1
    first_fit = 2


#: A number that the compiled model gives.
FROM_MODEL = -1


@dataclass(slots=True)
class PackRunnerConfig(RuntimeConfig):
    """How a `PackRunner` runs. What is left at its default comes from the model, where `packed_transformer` packed it.

    Attributes:
        timeout_microseconds: The window: how long a request waits for others to share its pack at most (default as in PopRT's examples).
        max_valid_num: Sequences in a pack at most; never more than the model was packed for.
        dynamic_input_name: The input whose length is a request's length.
        unpack_info_input_name: The input that tells the device where sequences begin: int32 [max_valid_num, 2], (row, offset).
        compile_batch_size: Rows of a batch, checked against the model.
        mask_name: The attention mask. Requests give 1 for tokens and 0 for padding, the device gets the sequence's number, or 0.
        position_ids_name: The input with each token's place in its sequence; filled in where a request does not give it.
        dynamic_group: Inputs whose lengths belong together, a list of names for each group; the first is the one whose length counts.
        algo: Where sequences go.
        padding_remove_mask: Set by `enable_padding_remove_mode`.
        padding_remove_inputs: Likewise.
        single_row_input: Set by `enable_input_single_row_mode`.
        delimiter_num: Likewise.
    """

    runner_type: ClassVar[RunnerType] = RunnerType.PACK_RUNNER

    timeout_microseconds: int = 15_000
    max_valid_num: int = FROM_MODEL
    dynamic_input_name: str = ""
    unpack_info_input_name: str = ""
    compile_batch_size: int = FROM_MODEL
    mask_name: str = ""
    position_ids_name: str = ""
    dynamic_group: Sequence[Sequence[str]] = ()
    algo: PackAlgorithm = PackAlgorithm.next_fit
    padding_remove_mask: str = field(default="", kw_only=True)
    padding_remove_inputs: tuple[str, ...] = field(default=(), kw_only=True)
    single_row_input: str = field(default="", kw_only=True)
    delimiter_num: int = field(default=0, kw_only=True)

    @property
    def algorithm(self) -> PackAlgorithm:
        """`algo`, by the name that PopRT's examples use."""
        return self.algo

    @algorithm.setter
    def algorithm(self, value: PackAlgorithm) -> None:
        self.algo = value

    def enable_padding_remove_mode(self, mask_name: str, input_names: Sequence[str]) -> None:
        """Removes padding according to the request's mask, so that requests of one fixed length are packed by their real length.

        Args:
            mask_name: The input that is 0 at padding positions of the others.
            input_names: The inputs from which padding is removed.
        """
        self.padding_remove_mask = mask_name
        self.padding_remove_inputs = tuple(input_names)

    def enable_input_single_row_mode(self, input_name: str, delimiter_num: int = 0) -> None:
        """Makes an input the one that tells the sequences of a row apart; sequences then stay whole within a row.

        Args:
            input_name: The attention mask.
            delimiter_num: Tokens that stay free between two sequences of a row.
        """
        self.single_row_input = input_name
        self.delimiter_num = delimiter_num

    def check(self) -> None:
        """Rejects invalid values.

        Raises:
            ValueError: a value is out of range, or contradicts another; names the field.
        """
        RuntimeConfig.check(self)
        if self.timeout_microseconds < 0:
            raise ValueError(f"timeout_microseconds is {self.timeout_microseconds}; expected 0 or more")
        for name in ("max_valid_num", "compile_batch_size"):
            value = getattr(self, name)
            if value != FROM_MODEL and value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more, or {FROM_MODEL} for the model's")
        if self.delimiter_num < 0:
            raise ValueError(f"delimiter_num is {self.delimiter_num}; expected 0 or more")
        if not isinstance(self.algo, PackAlgorithm):
            raise ValueError(f"algo is {self.algo!r}; expected one of {', '.join(f'PackAlgorithm.{each.name}' for each in PackAlgorithm)}")
        if self.is_batching:
            raise ValueError("batching_dim cannot be set for a PackRunner: packs are whole batches")
        if self.single_row_input and self.algo is PackAlgorithm.end_to_end:
            raise ValueError(
                f"input '{self.single_row_input}' is in single-row mode, and end_to_end lets sequences go over the end of rows"
            )
        if self.single_row_input and self.mask_name not in ("", self.single_row_input):
            raise ValueError(f"single-row mode names '{self.single_row_input}' as the mask, mask_name is '{self.mask_name}'")


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RowShape:
    """The shape of one device batch.

    Attributes:
        rows: Number of rows.
        row_length: Tokens per row.
        gap: Tokens that stay free between neighbouring sequences in a row.
    """

    rows: int
    row_length: int
    gap: int = 0

    @property
    def tokens(self) -> int:
        """Returns the number of tokens in all rows."""
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
    """Items that run together, in the order of their arrival."""

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
        """Returns a row with space for `length` more tokens, or None."""
        first = 0 if self._looks_back else self._current
        return next((row for row in range(first, len(self._used)) if self._start(row) + length <= self._length), None)

    def take(self, row: int, length: int) -> int:
        """Reserves `length` tokens in `row`; returns the index of the first one among all tokens of the batch."""
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
        """Starts without an open pack.

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
        """Returns the time at which the open pack must run; None if there is none."""
        return self._deadline_ns

    def longest(self, group: int = 0) -> int:
        """Returns the maximum number of tokens of an item."""
        shape = self._shapes[group]
        return shape.tokens if self._algorithm is PackAlgorithm.end_to_end else shape.row_length

    def add(self, item: Item, lengths: Sequence[int], now_ns: int) -> list[Pack[Item]]:
        """Adds an item to the open pack.

        Args:
            item: Anything.
            lengths: Its tokens, a number for each group.
            now_ns: Current time in nanoseconds.

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
        assert starts is not None, "an empty pack takes any item of a length that was checked"
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + self._window_ns
        self._open.append(Placed(item, tuple(lengths), starts))
        if len(self._open) >= self._max_items:
            complete += self.flush()
        return complete

    def due(self, now_ns: int) -> list[Pack[Item]]:
        """Closes and returns the open pack if its window is over."""
        return self.flush() if self._deadline_ns is not None and now_ns >= self._deadline_ns else []

    def flush(self) -> list[Pack[Item]]:
        """Closes and returns the open pack, if there is one."""
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
