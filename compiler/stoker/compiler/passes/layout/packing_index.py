"""Computes the positions of sequences from the inputs of a packed model: int32 indices, added once and only if needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.matching.editing import GraphEditor


@dataclass(frozen=True, slots=True)
class PackSizes:
    """Sizes of a packed model.

    Attributes:
        rows, row_length: Of the batch, as the padded model had them.
        sequences: In a batch at most (`max_valid_num`).
        segment: Tokens that a sequence may have at most where attention is done sequence by sequence; 0: attention is done row by row.
    """

    rows: int
    row_length: int
    sequences: int
    segment: int = 0

    @property
    def tokens(self) -> int:
        """Returns the number of tokens in the batch."""
        return self.rows * self.row_length


class PackingNodes:
    """Adds nodes that rearrange elements to one model."""

    def __init__(self, editor: GraphEditor) -> None:
        """Takes the editor of the model."""
        self.editor = editor

    def reshaped(self, before: ir.Node, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Returns `value` in another shape."""
        target = self.editor.constant(before, np.asarray(shape, np.int64), f"{value.name}/shape")
        return self.editor.insert(before, "Reshape", [value, target], name=f"{value.name}/Reshape", dtype=value.dtype, shape=shape)

    def transposed(self, before: ir.Node, value: ir.Value, order: Sequence[int], sizes: Sequence[int]) -> ir.Value:
        """Returns `value`, of shape `sizes`, with permuted dimensions."""
        if list(order) == sorted(order):
            return value
        return self.editor.insert(
            before,
            "Transpose",
            [value],
            attributes={"perm": list(order)},
            name=f"{value.name}/Transpose",
            dtype=value.dtype,
            shape=[sizes[axis] for axis in order],
        )

    def chosen(
        self, before: ir.Node, value: ir.Value, sizes: Sequence[int], row: int, token: int, index: ir.Value, index_shape: Sequence[int]
    ) -> ir.Value:
        """Entries of `value`, of shape `sizes`, by their number in dimensions `row` and `token` together.

        These become the dimensions of `index`; if it has only one, that takes the place of `row`, and `token` is gone.
        """
        rest = [axis for axis in range(len(sizes)) if axis not in (row, token)]
        tail = [sizes[axis] for axis in rest]
        front = self.transposed(before, value, [row, token, *rest], sizes)
        flat = self.reshaped(before, front, [sizes[row] * sizes[token], *tail])
        shape = [*index_shape, *tail]
        found = self.editor.insert(before, "Gather", [flat, index], attributes={"axis": 0}, dtype=value.dtype, shape=shape)
        kept = [row, token][: len(index_shape)]
        have = [*kept, *rest]
        return self.transposed(before, found, [have.index(axis) for axis in range(len(sizes)) if axis in have], shape)


class PackIndex:
    """Adds the index tensors that locate sequences."""

    def __init__(self, nodes: PackingNodes, first: ir.Node, sizes: PackSizes, numbers: ir.Value, places: Callable[[], ir.Value]) -> None:
        """Takes the inputs that say it.

        Args:
            nodes: Of the model.
            first: Everything goes in front of this node.
            sizes: Of the packed model.
            numbers: int32 [rows, row_length]: number of each token's sequence from 1, or 0.
            places: Gives int32 [sequences, 2]: row and offset of each sequence.
        """
        self._nodes, self._first, self._sizes, self._numbers, self._places = nodes, first, sizes, numbers, places
        self._made: dict[str, ir.Value] = {}

    def starts(self) -> ir.Value:
        """Returns int32 [sequences]: the index of each sequence's first token in the batch."""

        def make() -> ir.Value:
            count = [self._sizes.sequences]
            row, offset = (self._op("Gather", [self._places(), self._constant(column)], count, axis=1) for column in (0, 1))
            return self._op("Add", [self._op("Mul", [row, self._constant(self._sizes.row_length)], count), offset], count)

        return self._once("starts", make)

    def tokens(self) -> ir.Value:
        """Returns int32 [sequences, segment]: the batch indices of each sequence's tokens, and of the tokens after it."""

        def make() -> ir.Value:
            shape = [self._sizes.sequences, self._sizes.segment]
            return self._op("Min", [self._unbounded(), self._constant(self._sizes.tokens - 1)], shape)

        return self._once("tokens", make)

    def is_own(self) -> ir.Value:
        """Returns bool [sequences, segment]: whether the token at `tokens` belongs to the sequence."""

        def make() -> ir.Value:
            sizes = self._sizes
            shape = [sizes.sequences, sizes.segment]
            flat = self._nodes.reshaped(self._first, self._numbers, [sizes.tokens])
            found = self._op("Gather", [flat, self.tokens()], shape, axis=0)
            own = self._constant(np.arange(1, sizes.sequences + 1).reshape(-1, 1))
            is_same = self._op("Equal", [found, own], shape, dtype=ir.DataType.BOOL)
            is_there = self._op("Less", [self._unbounded(), self._constant(sizes.tokens)], shape, dtype=ir.DataType.BOOL)
            return self._op("And", [is_same, is_there], shape, dtype=ir.DataType.BOOL)

        return self._once("own", make)

    def begins(self) -> ir.Value:
        """int32 [rows, row_length]: the number of the first token of each token's sequence; that of the first for what is no token."""

        def make() -> ir.Value:
            shape = [self._sizes.rows, self._sizes.row_length]
            return self._op("Gather", [self.starts(), self._sequence()], shape, axis=0)

        return self._once("begins", make)

    def segments(self) -> ir.Value:
        """int32 [rows, row_length]: where each token stands among [sequences x segment]; anywhere for what is no token."""

        def make() -> ir.Value:
            sizes = self._sizes
            shape = [sizes.rows, sizes.row_length]
            count = self._constant(np.arange(prod(shape)).reshape(shape))
            position = self._op("Max", [self._op("Sub", [count, self.begins()], shape), self._constant(0)], shape)
            position = self._op("Min", [position, self._constant(sizes.segment - 1)], shape)
            return self._op("Add", [self._op("Mul", [self._sequence(), self._constant(sizes.segment)], shape), position], shape)

        return self._once("segments", make)

    def _sequence(self) -> ir.Value:
        """Returns int32 [rows, row_length]: the sequence of each token, from 0; 0 for padding."""

        def make() -> ir.Value:
            shape = [self._sizes.rows, self._sizes.row_length]
            return self._op("Max", [self._op("Sub", [self._numbers, self._constant(1)], shape), self._constant(0)], shape)

        return self._once("sequence", make)

    def _unbounded(self) -> ir.Value:
        """Returns the same as `tokens`, without clamping segments that extend beyond the batch."""

        def make() -> ir.Value:
            starts = self._nodes.reshaped(self._first, self.starts(), [self._sizes.sequences, 1])
            steps = self._constant(np.arange(self._sizes.segment))
            return self._op("Add", [starts, steps], [self._sizes.sequences, self._sizes.segment])

        return self._once("unbounded", make)

    def _once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _constant(self, numbers: "int | np.typing.NDArray[np.int_]") -> ir.Value:
        return self._nodes.editor.constant(self._first, np.asarray(numbers, np.int32), "packing/numbers")

    def _op(
        self, op_type: str, inputs: Sequence[ir.Value], shape: Sequence[int], *, dtype: ir.DataType = ir.DataType.INT32, **attributes: int
    ) -> ir.Value:
        name = f"packing/{op_type}"
        return self._nodes.editor.insert(self._first, op_type, inputs, attributes=attributes, name=name, dtype=dtype, shape=shape)


def inverse(order: Sequence[int]) -> list[int]:
    """Returns the inverse of permutation `order`."""
    return [list(order).index(axis) for axis in range(len(order))]
