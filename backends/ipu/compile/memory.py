"""Memory of the tiles over the schedule: what lives always, what lives now, and where it does not fit."""

from collections.abc import Mapping, Sequence

from backends.ipu.program import MemoryAccount
from compiler.errors import CompileError

_TOP = 5


class OutOfTileMemory(CompileError):
    """A program that needs more memory on a tile than the tile has.

    The text contains `Out of memory on tile <id>: <n> bytes`, as tools for the real device look for it.

    Attributes:
        tile: Number of the fullest tile, counted over all IPUs of a replica.
        need_bytes, capacity_bytes: What it would hold, and what it can.
    """

    def __init__(
        self,
        *,
        name: str,
        tile: int,
        need_bytes: int,
        capacity_bytes: int,
        by_category: Mapping[str, int],
        holders: Sequence[tuple[str, int]],
    ) -> None:
        categories = ", ".join(f"{key} {size}" for key, size in sorted(by_category.items(), key=lambda item: -item[1]) if size)
        lines = "".join(f"\n  {size:>9} bytes  {what}" for what, size in holders[:_TOP])
        super().__init__(
            f"Model '{name}' does not fit. Out of memory on tile {tile}: {need_bytes} bytes needed, {capacity_bytes} bytes available.\n"
            f"By category: {categories}.\nAt its fullest the tile holds, most first:{lines}\n"
            "Try a smaller batch, precision fp16 or fp8, a lower available_memory_proportion, serialize_matmul on the largest MatMul, or more IPUs."
        )
        self.tile = tile
        self.need_bytes = need_bytes
        self.capacity_bytes = capacity_bytes


def account(
    *,
    ipu: int,
    name: str,
    tiles_per_ipu: int,
    io_tiles: int,
    io_tile_bytes: int,
    capacity_bytes: int,
    by_category: Mapping[str, int],
    holders: Sequence[tuple[str, int]],
) -> MemoryAccount:
    """The account of one IPU, its compute tiles numbered before its IO tiles.

    Args:
        ipu: Which IPU of the replica.
        name: Of the model, for the error.
        tiles_per_ipu, io_tiles: Tiles in all, and those set apart for IO.
        io_tile_bytes: On each IO tile.
        capacity_bytes: Of a tile.
        by_category: Bytes on the fullest compute tile.
        holders: What holds them, largest first, for the error.

    Raises:
        OutOfTileMemory: a tile would hold more than `capacity_bytes`.
    """
    need = sum(by_category.values())
    tiles = tiles_per_ipu - io_tiles
    first = ipu * tiles_per_ipu
    if need > capacity_bytes:
        raise OutOfTileMemory(
            name=name, tile=first, need_bytes=need, capacity_bytes=capacity_bytes, by_category=by_category, holders=holders
        )
    if io_tile_bytes > capacity_bytes:
        held = {"stream buffers on IO tiles": io_tile_bytes}
        raise OutOfTileMemory(
            name=name,
            tile=first + tiles,
            need_bytes=io_tile_bytes,
            capacity_bytes=capacity_bytes,
            by_category=held,
            holders=tuple(held.items()),
        )
    tile_bytes = (need,) * tiles + (io_tile_bytes,) * io_tiles
    return MemoryAccount(
        ipu=ipu,
        capacity_bytes=capacity_bytes,
        by_category=dict(by_category),
        total_bytes=sum(tile_bytes),
        tile_bytes=tile_bytes,
    )
