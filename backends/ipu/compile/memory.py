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
            "Try a smaller batch, precision fp16 or fp8, a lower available_memory_proportion, serialize_matmul on the largest MatMul,"
            " or more IPUs."
        )
        self.tile = tile
        self.need_bytes = need_bytes
        self.capacity_bytes = capacity_bytes


def check_fit(account: MemoryAccount, *, name: str, holders: Sequence[tuple[str, int]]) -> None:
    """Refuses an account that is over capacity on any tile.

    Args:
        account: Of one IPU.
        name: Of the model, for the error.
        holders: What takes the memory, with bytes, most first; for the error.

    Raises:
        OutOfTileMemory: naming the fullest tile, counted over the IPUs of a replica.
    """
    need = max(account.tile_bytes, default=0)
    if need <= account.capacity_bytes:
        return
    number = account.tile_bytes.index(need)
    is_compute_tile = need == sum(account.by_category.values())
    raise OutOfTileMemory(
        name=name,
        tile=account.ipu * len(account.tile_bytes) + number,
        need_bytes=need,
        capacity_bytes=account.capacity_bytes,
        by_category=account.by_category if is_compute_tile else {"stream buffers": need},
        holders=holders if is_compute_tile else [("stream buffers on an IO tile", need)],
    )
