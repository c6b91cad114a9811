"""`Residency`: all that the tiles of one IPU hold while a graph is planned: weights, tensors, temporary data, code, stream buffers."""

import math
from collections.abc import Hashable

import onnx_ir as ir

from backends.ipu.compile.constants import VECTOR_BYTES, CostConstants
from backends.ipu.compile.cost_model import NodeCost
from backends.ipu.compile.liveness import Peak, Storage, peak
from backends.ipu.compile.shape_facts import TensorFacts
from backends.ipu.program import MemoryAccount


class Residency:
    """Grows along the schedule of one IPU; `point` is the number of nodes that it has run so far."""

    def __init__(self, ipu: int, tiles: int) -> None:
        self.ipu = ipu
        self._tiles = tiles
        self._storages: list[Storage] = []
        self._held: dict[ir.Value, Storage] = {}
        self._temporaries: list[int] = []
        self._owners: list[str] = []
        self._weights: dict[ir.Value, int] = {}
        self._code: dict[Hashable, tuple[int, int]] = {}
        self._io_bytes = 0

    @property
    def point(self) -> int:
        return len(self._temporaries)

    def holds(self, value: ir.Value) -> bool:
        """Whether `value` has a place here, as a weight or as a tensor."""
        return value in self._held or value in self._weights

    def hold_weight(self, value: ir.Value, facts: TensorFacts) -> None:
        """Keeps a constant for the whole run."""
        self._weights[value] = self._tile_bytes(facts)

    def hold(self, value: ir.Value, facts: TensorFacts) -> None:
        """Gives `value` a region of its own, from now on."""
        storage = Storage(value.name or "", self._tile_bytes(facts), self.point, self.point)
        self._storages.append(storage)
        self._held[value] = storage

    def share(self, value: ir.Value, source: ir.Value) -> None:
        """Lets `value` be in the region of `source`; nothing where `source` is a weight."""
        storage = self._held.get(source)
        if storage is not None:
            self._held[value] = storage
        elif source in self._weights:
            self._weights[value] = 0

    def read(self, value: ir.Value) -> None:
        """Keeps `value` alive until now."""
        storage = self._held.get(value)
        if storage is not None:
            storage.last = self.point

    def buffer(self, byte_count: int) -> None:
        """Keeps `byte_count` bytes of stream buffers for the whole run."""
        self._io_bytes += byte_count

    def ran(self, owner: str, signature: Hashable, cost: NodeCost) -> None:
        """Closes the point: `owner` has run; nodes of the same `signature` share their code."""
        self._temporaries.append(cost.temporary_bytes)
        self._owners.append(owner)
        self._code[signature] = (cost.code_bytes, cost.exchange_code_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on the fullest tile."""
        return sum(self._weights.values())

    @property
    def code_bytes(self) -> int:
        """Bytes of code on the fullest tile."""
        return sum(code + exchange for code, exchange in self._code.values())

    def account(self, *, tiles_per_ipu: int, capacity_bytes: int, constants: CostConstants) -> MemoryAccount:
        """The account of this IPU at the fullest point of the schedule, its compute tiles numbered before its IO tiles.

        It may be over capacity; `memory.check_fit` refuses that.
        """
        fullest = self._peak()
        io_tiles = tiles_per_ipu - self._tiles
        io = math.ceil(self._io_bytes / (io_tiles or self._tiles))
        by_category = {
            "weights": self.weight_bytes,
            "activations": fullest.live_bytes,
            "temporary": fullest.temporary_bytes,
            "code": sum(code for code, _ in self._code.values()) + math.ceil(constants.fixed_code_bytes),
            "exchange_code": sum(exchange for _, exchange in self._code.values()),
            "io": 0 if io_tiles else io,
        }
        tile_bytes = (sum(by_category.values()),) * self._tiles + (io,) * io_tiles
        return MemoryAccount(
            ipu=self.ipu, capacity_bytes=capacity_bytes, by_category=by_category, total_bytes=sum(tile_bytes), tile_bytes=tile_bytes
        )

    def holders(self) -> list[tuple[str, int]]:
        """What takes memory on the fullest tile at the fullest point, with its bytes there, most first."""
        weights = [(f"weight '{value.name}'", size) for value, size in self._weights.items()]
        return sorted([*self._peak().holders, *weights], key=lambda item: -item[1])

    def _peak(self) -> Peak:
        return peak(self._storages, self._temporaries, self._owners)

    def _tile_bytes(self, facts: TensorFacts) -> int:
        """Bytes on the fullest tile of a tensor that is spread evenly, in whole vectors."""
        return math.ceil(math.ceil(facts.byte_count / VECTOR_BYTES) / self._tiles) * VECTOR_BYTES
