"""`Residency`: all that the tiles of one IPU hold while a graph is planned: weights, tensors, temporary data, code, stream buffers."""

import math
import sys
from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from stoker.backends.ipu.compile.constants import CostConstants
from stoker.backends.ipu.compile.cost_model import NodeCost
from stoker.backends.ipu.compile.liveness import Peak, Storage, Temporary, peak
from stoker.backends.ipu.compile.tile_map import TileBytes, TileMap, TileSpan
from stoker.backends.ipu.program import MemoryAccount, StepKind
from stoker.compiler.lowering.tensor_facts import TensorFacts, node_label


class Residency:
    """Grows along the schedule of one IPU; `point` is the number of nodes that it has run so far."""

    def __init__(self, ipu: int, *, tiles: int, io_tiles: int, constants: CostConstants) -> None:
        """Begins with nothing but the runtime support that every program has.

        Args:
            ipu: Its number.
            tiles: That compute.
            io_tiles: Set apart for streams, numbered behind the others.
            constants: Of the cost model.
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
        self._io_bytes = 0
        self._peak: Peak | None = None

    @property
    def point(self) -> int:
        return len(self._temporaries)

    def holds(self, value: ir.Value) -> bool:
        """Whether `value` has a place here, as a weight or as a tensor."""
        return value in self._held or value in self._weights

    def hold_weight(self, value: ir.Value, facts: TensorFacts) -> None:
        """Keeps a constant for the whole run."""
        self._weights[value] = self._map.place(facts.byte_count)

    def hold(self, value: ir.Value, facts: TensorFacts, *, waiting: int = 0) -> None:
        """Gives `value` a region of its own, from now on; and one for the whole run to each of `waiting` micro-batches behind this one."""
        storage = Storage(_described(value), self._map.place(facts.byte_count), self.point, self.point)
        self._storages.append(storage)
        self._held[value] = storage
        if waiting:
            name = f"{_described(value)}, of {waiting} waiting micro-batch(es)"
            self._storages.append(Storage(name, self._map.place(waiting * facts.byte_count), 0, sys.maxsize))

    def share(self, value: ir.Value, source: ir.Value) -> None:
        """Lets `value` be in the region of `source`."""
        storage = self._held.get(source)
        if storage is not None:
            self._held[value] = storage
        elif source in self._weights:
            self._weights[value] = TileSpan(0, 0, 0)

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
        tiles = max((step.tiles for step in cost.steps if step.kind is not StepKind.SYNC), default=0)
        self._temporaries.append(Temporary(owner, cost.temporary_bytes, tiles))
        self._code[signature] = (cost.code_bytes, cost.exchange_code_bytes, tiles)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on all tiles together."""
        return sum(span.total_bytes(self._tiles) for span in self._weights.values())

    @property
    def code_bytes(self) -> int:
        """Bytes of code on all tiles together, without what every program has."""
        return int((self._control_code() + self._exchange_code()).sum())

    def account(self, *, capacity_bytes: int) -> MemoryAccount:
        """The account of this IPU: by category on its fullest tile at the fullest moment; in all on each tile, at that tile's own.

        It may be over capacity; `memory.check_fit` refuses that.
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
        """What takes memory on the fullest tile at the fullest moment, with its bytes there, most first."""
        fullest = self._fullest()
        weights = [(_described(value), span.on_tile(fullest.tile, self._tiles)) for value, span in self._weights.items()]
        code = int(self._control_code()[fullest.tile] + self._exchange_code()[fullest.tile]) + self._fixed_code_bytes
        found = [*fullest.holders, *weights, ("code, with that of the exchange", code)]
        return sorted((each for each in found if each[1]), key=lambda item: -item[1])

    def _fullest(self) -> Peak:
        """REQUIRES: the schedule is complete."""
        if self._peak is None:
            self._peak = peak(self._storages, self._temporaries, self._resident())
        return self._peak

    def _resident(self) -> TileBytes:
        """What each tile holds all the time."""
        tiles = self._control_code() + self._exchange_code() + self._fixed_code_bytes
        if not self._io_tiles:
            tiles += self._io_tile_bytes()
        for span in self._weights.values():
            span.put(tiles)
        return tiles

    def _control_code(self) -> TileBytes:
        """Every tile runs the whole program, also the steps that it only waits in."""
        return np.full(self._tiles, sum(code for code, _, _ in self._code.values()), np.int64)

    def _exchange_code(self) -> TileBytes:
        """Code to receive lies where something is received."""
        bytes_of = np.zeros(self._tiles, np.int64)
        for _, exchange, tiles in self._code.values():
            bytes_of[:tiles] += exchange
        return bytes_of

    def _io_tile_bytes(self) -> int:
        return math.ceil(self._io_bytes / (self._io_tiles or self._tiles))


def _described(value: ir.Value) -> str:
    """A tensor by its name and the node it belongs to: its maker, or for a weight the first reader."""
    maker = value.producer()
    if maker is not None:
        return f"tensor '{value.name}' of node '{node_label(maker)}' ({maker.op_type})"
    reader = next((use.node for use in value.uses()), None)
    kind = "input" if value.const_value is None else "weight"
    return f"{kind} '{value.name}'" + (f" of node '{node_label(reader)}' ({reader.op_type})" if reader is not None else "")
