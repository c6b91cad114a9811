"""Batches of one size, for models that run no other or run no faster with fewer."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def full_batches(items: Sequence[T], size: int) -> Iterator[tuple[list[T], int]]:
    """`items` in batches of `size`, each with the number of items that are new; the last is filled up from the first items on."""
    for start in range(0, len(items), size):
        yield [items[at % len(items)] for at in range(start, start + size)], min(size, len(items) - start)
