"""How tensors lie on tiles: spread evenly in whole vectors, what is left over going to the tiles behind those that got the last leftover.

So a tensor smaller than one vector a tile lies on a few tiles only, and small tensors do not pile up on the first ones (Poplar's
`mapTensorLinearly` with an offset does the same).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.ipu.compile.constants import VECTOR_BYTES

TileBytes = NDArray[np.int64]
"""Bytes of each tile, `[tiles]`."""


@dataclass(frozen=True, slots=True)
class TileSpan:
    """Where a region lies: `even_bytes` on every tile, and one vector more on `more` tiles from `start` on, round to the first."""

    even_bytes: int
    start: int
    more: int

    def put(self, tiles: NDArray[Any], sign: int = 1) -> None:
        """Adds the region to `tiles`, or with `sign` -1 takes it away."""
        if self.even_bytes:
            tiles += sign * self.even_bytes
        end = self.start + self.more
        tiles[self.start : end] += sign * VECTOR_BYTES
        if end > len(tiles):
            tiles[: end - len(tiles)] += sign * VECTOR_BYTES

    def on_tile(self, tile: int, tiles: int) -> int:
        """Bytes of the region on tile number `tile` of `tiles`."""
        has_more = (tile - self.start) % tiles < self.more
        return self.even_bytes + (VECTOR_BYTES if has_more else 0)

    def total_bytes(self, tiles: int) -> int:
        return self.even_bytes * tiles + self.more * VECTOR_BYTES


class TileMap:
    """Gives regions their places, one after the other."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles
        self._next = 0

    def place(self, byte_count: int) -> TileSpan:
        """A place for a region of `byte_count` bytes."""
        even, more = divmod(-(-byte_count // VECTOR_BYTES), self._tiles)
        span = TileSpan(even * VECTOR_BYTES, self._next, more)
        self._next = (self._next + more) % self._tiles
        return span
