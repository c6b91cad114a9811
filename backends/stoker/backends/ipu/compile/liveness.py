"""Memory liveness: the tensors that a tile holds at each point of the schedule.

A *storage* is a region of memory. A view shares the storage of its input. An element-wise operator overwrites an input that no later node
reads (like PopART's in-placing). A storage is live from the point that writes it first to the last point that reads it.

Tensors are spread evenly over the tiles in whole vectors. The remaining vectors go to the tiles after those that received the previous
remainder. So a tensor with fewer vectors than tiles is on a few tiles only, and small tensors do not accumulate on the first tiles
(Poplar's `mapTensorLinearly` with an offset does the same).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.backends.ipu.compile.constants import VECTOR_BYTES

TileBytes = NDArray[np.int64]
"""Bytes on each tile, shape `[tiles]`."""


@dataclass(frozen=True, slots=True)
class TileSpan:
    """The tiles of a region:

    `even_bytes` on every tile, and one vector more on `more` tiles from `start` on, wrapping around to the first tile.
    """

    even_bytes: int
    start: int
    more: int

    def put(self, tiles: NDArray[Any], sign: int = 1) -> None:
        """Adds the region to `tiles`, or subtracts it if `sign` is -1."""
        if self.even_bytes:
            tiles += sign * self.even_bytes
        end = self.start + self.more
        tiles[self.start : end] += sign * VECTOR_BYTES
        if end > len(tiles):
            tiles[: end - len(tiles)] += sign * VECTOR_BYTES

    def on_tile(self, tile: int, tiles: int) -> int:
        """Returns the bytes of the region on tile number `tile` of `tiles`."""
        has_more = (tile - self.start) % tiles < self.more
        return self.even_bytes + (VECTOR_BYTES if has_more else 0)

    def total_bytes(self, tiles: int) -> int:
        return self.even_bytes * tiles + self.more * VECTOR_BYTES


class TileMap:
    """Assigns tiles to regions, one region after the other."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles
        self._next = 0

    def place(self, byte_count: int) -> TileSpan:
        """Returns the tiles for a region of `byte_count` bytes."""
        even, more = divmod(-(-byte_count // VECTOR_BYTES), self._tiles)
        span = TileSpan(even * VECTOR_BYTES, self._next, more)
        self._next = (self._next + more) % self._tiles
        return span


@dataclass(slots=True)
class Storage:
    """A region of memory: its label, its tiles, and the first and last point at which it is live."""

    name: str
    span: TileSpan
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Temporary:
    """The temporary memory of one point: bytes on each of the first `tiles` tiles, for `owner`."""

    owner: str
    tile_bytes: int
    tiles: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest tile at its point of highest use.

    Attributes:
        tile: Number of the tile.
        live_bytes, temporary_bytes: Bytes of live storages and of temporary data on the tile at that point.
        holders: Live storages on the tile at that point and temporary data of the running node, largest first.
        most: For each tile at its own point of highest use, the bytes of live storages, temporary data and resident data.
    """

    tile: int
    live_bytes: int
    temporary_bytes: int
    holders: tuple[tuple[str, int], ...]
    most: TileBytes


def peak(storages: Sequence[Storage], temporaries: Sequence[Temporary], resident: TileBytes) -> Peak:
    """Returns the point and the tile at which `storages`, `temporaries` and `resident` together take the most bytes.

    Args:
        storages: All regions of one IPU.
        temporaries: Temporary memory of each point.
        resident: Bytes that each tile always holds, shape `[tiles]`.
    """
    points = max(len(temporaries), 1)
    begin: list[list[Storage]] = [[] for _ in range(points + 1)]
    end: list[list[Storage]] = [[] for _ in range(points + 1)]
    for each in storages:
        begin[min(each.first, points - 1)].append(each)
        end[min(each.last + 1, points)].append(each)
    now = resident.copy()
    most = resident.copy()
    highest, at, tile, live_bytes, temporary_bytes = -1, 0, 0, 0, 0
    for point in range(points):
        for each in end[point]:
            each.span.put(now, -1)
        for each in begin[point]:
            each.span.put(now)
        temporary = temporaries[point] if temporaries else Temporary("", 0, 0)
        now[: temporary.tiles] += temporary.tile_bytes
        np.maximum(most, now, out=most)
        fullest = int(np.argmax(now))
        if now[fullest] > highest:
            highest, at, tile = int(now[fullest]), point, fullest
            temporary_bytes = temporary.tile_bytes if fullest < temporary.tiles else 0
            live_bytes = highest - temporary_bytes - int(resident[fullest])
        now[: temporary.tiles] -= temporary.tile_bytes
    tiles = len(resident)
    alive = (each for each in storages if min(each.first, points - 1) <= at <= each.last)
    holders = [(each.name, each.span.on_tile(tile, tiles)) for each in alive]
    if temporaries:
        holders.append((f"temporary data of {temporaries[at].owner}", temporary_bytes))
    return Peak(tile, live_bytes, temporary_bytes, tuple(sorted(holders, key=lambda item: -item[1])), most)


class Aliases:
    """The groups of values of a graph that share memory as views, and the last node that reads each group."""

    def __init__(self, graph: ir.Graph, views: Sequence[ir.Node]) -> None:
        looking = set(views)
        self._root: dict[ir.Value, ir.Value] = {}
        self._last_read: dict[ir.Value, int] = {}
        for index, node in enumerate(graph):
            for value in node.inputs:
                if value is not None:
                    self._last_read[self.root(value)] = index
            if node in looking and node.inputs and node.inputs[0] is not None:
                for value in node.outputs:
                    self._root[value] = self.root(node.inputs[0])
        for value in graph.outputs:
            self._last_read[self.root(value)] = len(graph)

    def root(self, value: ir.Value) -> ir.Value:
        """Returns the value that `value` is a view of, or `value` itself if it is not a view."""
        return self._root.get(value, value)

    def is_read_after(self, value: ir.Value, index: int) -> bool:
        """Whether a node after number `index`, or the host, reads `value` or a view of the same memory."""
        return self._last_read.get(self.root(value), -1) > index
