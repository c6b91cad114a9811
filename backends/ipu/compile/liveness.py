"""Which tensors a tile holds at each point of the schedule.

A *storage* is a region of memory. Views share the storage of what they look at; an element-wise operator writes over an input that
nobody needs any more (as PopART's in-placing does). A storage lives from the point that makes it to the last that reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(slots=True)
class Storage:
    """A region: bytes on the fullest tile, and the first and last point at which it lives."""

    name: str
    tile_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment.

    Attributes:
        live_bytes, temporary_bytes: Then, on the fullest tile.
        holders: What is alive then, largest first, with the temporary data of the node that runs.
    """

    live_bytes: int = 0
    temporary_bytes: int = 0
    holders: tuple[tuple[str, int], ...] = ()


def peak(storages: Sequence[Storage], temporaries: Sequence[int], owners: Sequence[str]) -> Peak:
    """The point at which `storages` and `temporaries` together take most.

    Args:
        storages: All regions of one IPU.
        temporaries: Bytes of temporary data at each point.
        owners: What runs at each point, for `holders`.
    """
    if not temporaries:
        return Peak()
    change = [0] * (len(temporaries) + 1)
    for each in storages:
        change[min(each.first, len(temporaries))] += each.tile_bytes
        change[min(each.last + 1, len(temporaries))] -= each.tile_bytes
    live, most, at, live_then = 0, -1, 0, 0
    for point, temporary in enumerate(temporaries):
        live += change[point]
        if live + temporary > most:
            most, at, live_then = live + temporary, point, live
    holders = [(f"tensor '{each.name}'", each.tile_bytes) for each in storages if each.first <= at <= each.last]
    holders.append((f"temporary data of {owners[at]}", temporaries[at]))
    return Peak(live_then, temporaries[at], tuple(sorted(holders, key=lambda item: -item[1])))


class Aliases:
    """Which values of a graph share memory as views, and at which node a group of them is read last."""

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
        """What `value` is a view of; itself where it is none."""
        return self._root.get(value, value)

    def is_read_after(self, value: ir.Value, index: int) -> bool:
        """Whether a node behind number `index`, or the host, reads `value` or a view of the same memory."""
        return self._last_read.get(self.root(value), -1) > index
