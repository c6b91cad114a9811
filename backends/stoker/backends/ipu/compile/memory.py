"""Memory accounts of IPUs: for one model along its schedule, and for several fused models; and the check that they fit."""

import math
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from stoker.backends.ipu.compile.constants import CODELET_BYTES, FITTED, CostConstants
from stoker.backends.ipu.compile.cost_model import NodeCost
from stoker.backends.ipu.compile.liveness import Peak, Storage, Temporary, TileBytes, TileMap, TileSpan, peak
from stoker.backends.ipu.program import MemoryAccount, StepKind
from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.typed_graph import TensorFacts, node_label

_TOP = 5
#: Categories that only the running model uses. The other categories exist for all models of a fused program.
_SHARED = frozenset({"activations", "temporary"})


class OutOfTileMemory(CompileError):
    """A program needs more memory on a tile than the tile has.

    The text contains `Out of memory on tile <id>: <n> bytes`, because tools for the real device search for it.

    Attributes:
        tile: Number of the fullest tile, counted over all IPUs of a replica.
        need_bytes, capacity_bytes: Bytes that the tile would hold, and its capacity.
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
            f"By category: {categories}.\nAt its fullest the tile holds, most first:{lines}\nTry {advice(by_category)}."
        )
        self.tile = tile
        self.need_bytes = need_bytes
        self.capacity_bytes = capacity_bytes


_BATCH, _PRECISION = "a smaller batch", "a narrower precision (fp16; fp8 on ipu21)"
_PRODUCTS = "serialize_matmul, if a MatMul is the largest"
_IPUS = "more IPUs: num_ipus=2 virtual_graph_mode=auto in compiler_options, or manual_sharding_config"
#: What makes each category smaller, the most effective first.
_LEVERS: Mapping[str, Sequence[str]] = {
    "temporary": ("a lower available_memory_proportion", _PRODUCTS, _BATCH, _PRECISION, _IPUS),
    "activations": (_BATCH, _PRECISION, _IPUS),
    "weights": (_PRECISION, "precision fp8_weight", _IPUS),
    "code": ("enable_outlining if it is off", _IPUS, "fewer operators of different shapes"),
    "exchange_code": (_BATCH, _PRODUCTS, _IPUS),
    "io": (_BATCH, "num_io_tiles to keep streams off the other tiles"),
    "stream buffers": ("more num_io_tiles", _BATCH),
}


def advice(by_category: Mapping[str, int]) -> str:
    """Returns what to try for a tile that holds `by_category` bytes: the levers of its largest category, the most effective first."""
    largest = max(by_category, key=lambda name: by_category[name])
    *levers, last = _LEVERS[largest]
    return f"{', '.join(levers)}, or {last} (most bytes are {largest.replace('_', ' ')})"


def check_fit(account: MemoryAccount, *, name: str, holders: Sequence[tuple[str, int]]) -> None:
    """Rejects an account that is over capacity on any tile.

    Args:
        account: The account of one IPU.
        name: Name of the model, for the error.
        holders: The users of the memory with their bytes, largest first, for the error.

    Raises:
        OutOfTileMemory: a tile is over capacity; the text names the fullest one, counted over the IPUs of a replica.
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
    """Returns the account of each IPU with all models on it, and the users of its memory, largest first.

    Weights, code and stream buffers of all models are always in memory; activations and temporary data only those of the running model. The
    fullest tiles of the models are assumed to be the same tile. The other tiles are estimated from the totals.
    """
    accounts: dict[int, list[tuple[str, MemoryAccount]]] = {}
    for part in parts:
        for each in part.memory:
            accounts.setdefault(each.ipu, []).append((part.name, each))
    for ipu in sorted(accounts):
        yield _together(accounts[ipu], io_tiles)


def _together(named: Sequence[tuple[str, MemoryAccount]], io_tiles: int) -> tuple[MemoryAccount, list[tuple[str, int]]]:
    accounts = [account for _, account in named]
    # The maximum is taken over the sum of a model's activations and temporary data, not for each separately.
    busiest = max(accounts, key=_passing)
    keys = list(dict.fromkeys(key for each in accounts for key in each.by_category))
    merged = {
        key: busiest.by_category.get(key, 0) if key in _SHARED else sum(each.by_category.get(key, 0) for each in accounts) for key in keys
    }
    # Each tile holds runtime support and vertex code once, for any number of models.
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
    """Returns the bytes on the fullest tile that are used only while the model runs."""
    return sum(account.by_category.get(key, 0) for key in _SHARED)


class Residency:
    """Records the memory use along the schedule of one IPU. `point` is the number of nodes that have run so far."""

    def __init__(self, ipu: int, *, tiles: int, io_tiles: int, constants: CostConstants) -> None:
        """Starts with only the runtime support that every program has.

        Args:
            ipu: Number of the IPU.
            tiles: Number of tiles for computing.
            io_tiles: Number of tiles for streams, numbered after the others.
            constants: Constants of the cost model.
        """
        self.ipu = ipu
        self._tiles = tiles
        self._io_tiles = io_tiles
        self._fixed_code_bytes = math.ceil(constants.fixed_code_bytes)
        self._map = TileMap(tiles)
        self._storages: list[Storage] = []
        self._held: dict[ir.Value, Storage] = {}
        self._temporaries: list[Temporary] = []
        self._weights: dict[ir.Value, TileSpan] = {}
        self._code: dict[Hashable, tuple[int, int, int]] = {}
        self._codelets: set[str] = set()
        self._io_bytes = 0
        self._peak: Peak | None = None

    @property
    def point(self) -> int:
        return len(self._temporaries)

    def holds(self, value: ir.Value) -> bool:
        """Whether this IPU holds `value`, as a weight or as a tensor."""
        return value in self._held or value in self._weights

    def hold_weight(self, value: ir.Value, facts: TensorFacts) -> None:
        """Keeps a constant for the whole run."""
        self._weights[value] = self._map.place(facts.byte_count)

    def hold(self, value: ir.Value, facts: TensorFacts, *, waiting: int = 0) -> None:
        """Allocates a region for `value` from the current point on, and one for the whole run for each of `waiting` later micro-batches."""
        storage = Storage(_described(value), self._map.place(facts.byte_count), self.point, self.point)
        self._storages.append(storage)
        self._held[value] = storage
        if waiting:
            name = f"{_described(value)}, of {waiting} waiting micro-batch(es)"
            self._storages.append(Storage(name, self._map.place(waiting * facts.byte_count), 0, sys.maxsize))

    def share(self, value: ir.Value, source: ir.Value) -> None:
        """Places `value` in the region of `source`."""
        storage = self._held.get(source)
        if storage is not None:
            self._held[value] = storage
        elif source in self._weights:
            self._weights[value] = TileSpan(0, 0, 0)

    def read(self, value: ir.Value) -> None:
        """Keeps `value` live until the current point."""
        storage = self._held.get(value)
        if storage is not None:
            storage.last = self.point

    def buffer(self, byte_count: int) -> None:
        """Keeps `byte_count` bytes of stream buffers for the whole run."""
        self._io_bytes += byte_count

    def ran(self, owner: str, signature: Hashable, cost: NodeCost) -> None:
        """Ends the current point: `owner` has run. Nodes with the same `signature` share their code."""
        tiles = max((step.tiles for step in cost.steps if step.kind is not StepKind.SYNC), default=0)
        self._temporaries.append(Temporary(owner, cost.temporary_bytes, tiles))
        self._code[signature] = (cost.code_bytes, cost.exchange_code_bytes, tiles)
        self._codelets |= cost.codelets

    @property
    def weight_bytes(self) -> int:
        """Total bytes of weights on all tiles."""
        return sum(span.total_bytes(self._tiles) for span in self._weights.values())

    @property
    def code_bytes(self) -> int:
        """Total bytes of code on all tiles, without the fixed code of every program."""
        return int((self._control_code() + self._exchange_code()).sum())

    def account(self, *, capacity_bytes: int) -> MemoryAccount:
        """Returns the account of this IPU: bytes by category on its fullest tile at the point of highest use, and the total of each tile at
        that tile's own.

        The account may be over capacity; `check_fit` rejects such an account.
        """
        fullest = self._fullest()
        weights = np.zeros(self._tiles, np.int64)
        for span in self._weights.values():
            span.put(weights)
        by_category = {
            "weights": int(weights[fullest.tile]),
            "activations": fullest.live_bytes,
            "temporary": fullest.temporary_bytes,
            "code": int(self._control_code()[fullest.tile]) + self._fixed_code_bytes,
            "exchange_code": int(self._exchange_code()[fullest.tile]),
            "io": 0 if self._io_tiles else self._io_tile_bytes(),
        }
        tile_bytes = (*map(int, fullest.most), *([self._io_tile_bytes()] * self._io_tiles))
        return MemoryAccount(
            ipu=self.ipu, capacity_bytes=capacity_bytes, by_category=by_category, total_bytes=sum(tile_bytes), tile_bytes=tile_bytes
        )

    def holders(self) -> list[tuple[str, int]]:
        """The users of the fullest tile at the point of highest use, with their bytes, largest first."""
        fullest = self._fullest()
        weights = [(_described(value), span.on_tile(fullest.tile, self._tiles)) for value, span in self._weights.items()]
        code = int(self._control_code()[fullest.tile] + self._exchange_code()[fullest.tile]) + self._fixed_code_bytes
        found = [*fullest.holders, *weights, ("code, with that of the exchange", code)]
        return sorted((each for each in found if each[1]), key=lambda item: -item[1])

    def _fullest(self) -> Peak:
        """Returns the peak of memory use. REQUIRES: the schedule is complete."""
        if self._peak is None:
            self._peak = peak(self._storages, self._temporaries, self._resident())
        return self._peak

    def _resident(self) -> TileBytes:
        """Returns the bytes that each tile always holds."""
        tiles = self._control_code() + self._exchange_code() + self._fixed_code_bytes
        if not self._io_tiles:
            tiles += self._io_tile_bytes()
        for span in self._weights.values():
            span.put(tiles)
        return tiles

    def _control_code(self) -> TileBytes:
        """Returns the bytes of control and vertex code. Every tile runs the whole program, including the steps in which it only waits."""
        codelets = sum(CODELET_BYTES[name.partition(" ")[0]] for name in self._codelets)
        return np.full(self._tiles, codelets + sum(code for code, _, _ in self._code.values()), np.int64)

    def _exchange_code(self) -> TileBytes:
        """Returns the bytes of exchange code. It is on the tiles that receive data."""
        bytes_of = np.zeros(self._tiles, np.int64)
        for _, exchange, tiles in self._code.values():
            bytes_of[:tiles] += exchange
        return bytes_of

    def _io_tile_bytes(self) -> int:
        return math.ceil(self._io_bytes / (self._io_tiles or self._tiles))


def _described(value: ir.Value) -> str:
    """Returns the label of a tensor: its name, and the node that produces it or, for a weight, reads it first."""
    maker = value.producer()
    if maker is not None:
        return f"tensor '{value.name}' of node '{node_label(maker)}' ({maker.op_type})"
    reader = next((use.node for use in value.uses()), None)
    kind = "input" if value.const_value is None else "weight"
    return f"{kind} '{value.name}'" + (f" of node '{node_label(reader)}' ({reader.op_type})" if reader is not None else "")
