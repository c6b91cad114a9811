"""Memory accounts: those of several models together, and where one does not fit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stoker.backends.ipu.compile.constants import FITTED
from stoker.backends.ipu.program import MemoryAccount
from stoker.compiler.errors import CompileError

_TOP = 5
#: What only the model that runs takes; every other category is there for all models of a fused program.
_SHARED = frozenset({"activations", "temporary"})


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


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One model of a fused program: its name, and its account of each IPU it runs on."""

    name: str
    memory: Sequence[MemoryAccount]


def fused_accounts(parts: Sequence[FusedPart], *, io_tiles: int) -> Iterator[tuple[MemoryAccount, list[tuple[str, int]]]]:
    """The account of each IPU with all models on it, and what holds its memory, most first.

    Weights, code and stream buffers of all models are there all the time; activations and temporary data only of the one that runs.
    The models' fullest tiles are taken to be the same one; the others are estimated by what they hold in all.
    """
    accounts: dict[int, list[tuple[str, MemoryAccount]]] = {}
    for part in parts:
        for each in part.memory:
            accounts.setdefault(each.ipu, []).append((part.name, each))
    for ipu in sorted(accounts):
        yield _together(accounts[ipu], io_tiles)


def _together(named: Sequence[tuple[str, MemoryAccount]], io_tiles: int) -> tuple[MemoryAccount, list[tuple[str, int]]]:
    accounts = [account for _, account in named]
    # The moment counts at which one model's activations and temporary data take most, not the largest of each.
    busiest = max(accounts, key=_passing)
    keys = list(dict.fromkeys(key for each in accounts for key in each.by_category))
    merged = {
        key: busiest.by_category.get(key, 0) if key in _SHARED else sum(each.by_category.get(key, 0) for each in accounts) for key in keys
    }
    # Runtime support and vertex code are on a tile once, however many models it runs.
    again = (len(accounts) - 1) * math.ceil(FITTED.fixed_code_bytes)
    merged["code"] = merged.get("code", 0) - again
    most = sum(merged.values())
    summed = np.sum([each.tile_bytes for each in accounts], axis=0)
    computing = summed[: len(summed) - io_tiles]
    never_at_once = again + sum(_passing(each) for each in accounts) - _passing(busiest)
    computing = np.clip(computing - never_at_once, 0, most)
    computing[int(np.argmax(computing))] = most
    tile_bytes = tuple(int(each) for each in (*computing, *summed[len(summed) - io_tiles :]))
    holders = [
        (f"{key} of model '{name}'", account.by_category.get(key, 0)) for name, account in named for key in keys if key not in _SHARED
    ]
    holders += [(f"{key} of the model that runs", merged.get(key, 0)) for key in sorted(_SHARED)]
    together = replace(busiest, by_category=merged, total_bytes=sum(tile_bytes), tile_bytes=tile_bytes)
    return together, sorted((each for each in holders if each[1]), key=lambda item: -item[1])


def _passing(account: MemoryAccount) -> int:
    """Bytes on the fullest tile that are there only while the model runs."""
    return sum(account.by_category.get(key, 0) for key in _SHARED)
