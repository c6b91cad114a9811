"""The meaning of each dimension of a value: rows of the batch, tokens of a row, keys of an attention.

A dimension is a product of factors, since exporters merge and split dimensions by Reshape: [rows x tokens, hidden] is as good as
[rows, tokens, hidden]. Values that do not depend on tokens have no entry: they are constants, or other inputs of the model.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from stoker.compiler.errors import PassError


class Role(enum.Enum):
    """The kind of items that a factor of a dimension counts.

    ROW: rows of the batch. TOKEN: tokens of a row. KEY: tokens of a row as keys of another token's attention. SEQUENCE: what rows become
    where one token of each is selected; sequences in the packed model. SAME: copies made by Expand.
    """

    ROW = "row"
    TOKEN = "token"  # noqa: S105 - no password
    KEY = "key"
    SEQUENCE = "sequence"
    SAME = "copies"


@dataclass(frozen=True, slots=True)
class Factor:
    """Part of a dimension; `size` is its size in the model before packing."""

    role: Role | None
    size: int


Axis = tuple[Factor, ...]
Layout = tuple[Axis, ...]


class Mixed(PassError):
    """An operator does not treat the tokens of a row independently."""


def plain(shape: Iterable[int]) -> Layout:
    """Returns dimensions without rows, tokens, keys or sequences."""
    return tuple((Factor(None, size),) if size != 1 else () for size in shape)


def axis_of(role: Role, size: int) -> Axis:
    """Returns a dimension with a single factor."""
    return (Factor(role, size),)


def length(axis: Axis) -> int:
    """Returns the size of the dimension before packing."""
    return prod(factor.size for factor in axis)


def roles(axis: Axis) -> frozenset[Role]:
    """Returns the roles of a dimension, without copies."""
    return frozenset(factor.role for factor in axis if factor.role is not None and factor.role is not Role.SAME)


def roles_in(layout: Iterable[Axis]) -> frozenset[Role]:
    """Returns the roles of all dimensions."""
    return frozenset().union(*(roles(axis) for axis in layout))


def find(layout: Layout, role: Role) -> int | None:
    """Returns the only dimension whose single role is `role`."""
    found = [index for index, axis in enumerate(layout) if any(factor.role is role for factor in axis)]
    if len(found) != 1 or any(factor.role is not role and factor.size != 1 for factor in layout[found[0]]):
        return None
    return found[0]


def is_copies(axis: Axis) -> bool:
    """Returns whether all entries along the dimension are equal, so that it can be treated as a dimension of size 1."""
    return all(factor.role is Role.SAME for factor in axis)


def relabelled(axis: Axis, old: Role, new: Role) -> Axis:
    """Returns `axis` with one role replaced by another."""
    return tuple(Factor(new, factor.size) if factor.role is old else factor for factor in axis)


def regrouped(layout: Layout, shape: Sequence[int]) -> Layout:
    """Returns the dimensions after a Reshape to `shape`.

    Raises:
        Mixed: it cuts rows or tokens into pieces.
    """
    waiting = [factor for axis in layout for factor in axis]
    made: list[Axis] = []
    for size in shape:
        axis: list[Factor] = []
        need = size
        if need == 1 and waiting and waiting[0].size == 1:
            axis.append(waiting.pop(0))
        while need > 1 and waiting:
            factor = waiting.pop(0)
            if need % factor.size == 0:
                axis.append(factor)
                need //= factor.size
            elif factor.role in (None, Role.SAME) and factor.size % need == 0:
                axis.append(Factor(factor.role, need))
                waiting.insert(0, Factor(factor.role, factor.size // need))
                need = 1
            else:
                raise Mixed(f"it cuts {factor.size} {factor.role.value if factor.role else 'value'}s into pieces of {need}")
        made.append(tuple(axis))
    if waiting and made:
        made[-1] += tuple(waiting)
    return tuple(made)


def aligned(layout: Layout, rank: int) -> Layout:
    """Returns `layout` with leading dimensions of size 1, as in broadcasting."""
    return ((),) * (rank - len(layout)) + layout


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of an operator that broadcasts: its dimensions, and whether it depends on tokens."""

    layout: Layout
    is_known: bool


@dataclass(slots=True)
class Joined:
    """The result of broadcasting operands against each other.

    Attributes:
        layout: Dimensions of the result.
        as_keys: Operands whose tokens meet the keys of another one.
        constant_axes: For operands that do not depend on tokens: dimensions of the result that they have where others count tokens.
    """

    layout: Layout
    as_keys: list[int]
    constant_axes: dict[int, list[int]]


def joined(operands: Sequence[Operand]) -> Joined:
    """Broadcasts the operands.

    Raises:
        Mixed: entries of different meaning meet.
    """
    rank = max(len(operand.layout) for operand in operands)
    grid = [aligned(operand.layout, rank) for operand in operands]
    result = Joined((), [], {})
    made: list[Axis] = []
    for position in range(rank):
        column = [layout[position] for layout in grid]
        chosen = max(column, key=_weight)
        for index, axis in enumerate(column):
            if is_copies(axis) or roles(axis) == roles(chosen) or length(axis) == 1:
                continue
            if not roles(axis) and not operands[index].is_known and length(axis) == length(chosen):
                result.constant_axes.setdefault(index, []).append(position)
            elif roles(axis) == {Role.TOKEN} and roles(chosen) == {Role.KEY}:
                result.as_keys.append(index)
            else:
                raise Mixed(f"it joins {_words(axis)} with {_words(chosen)}")
        made.append(chosen)
    tokens = [position for position, axis in enumerate(made) if Role.TOKEN in roles(axis)]
    if len(tokens) > 1:  # every token with every other: the last dimension counts keys
        made[tokens[-1]] = relabelled(made[tokens[-1]], Role.TOKEN, Role.KEY)
    result.layout = tuple(made)
    return result


def _weight(axis: Axis) -> tuple[int, int]:
    found = roles(axis)
    return (3 if Role.KEY in found else 2 if found else 0 if is_copies(axis) else 1, length(axis))


def _words(axis: Axis) -> str:
    return " x ".join(f"{factor.size} {factor.role.value + 's' if factor.role else 'entries'}" for factor in axis) or "1"
