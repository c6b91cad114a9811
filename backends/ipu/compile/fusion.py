"""Several models in one program: one resident executable instead of reloads, a model selected by `index` for each call.

Weights and code of all models are on the device all the time, as are their stream buffers; what a model needs while it runs is shared,
since only one runs at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from backends.ipu.compile.constants import FITTED
from backends.ipu.compile.memory import check_fit
from backends.ipu.compile.streams import INDEX_ANCHOR
from backends.ipu.compile.sub_graph import CompiledGraph
from backends.ipu.hardware import IpuHardware
from backends.ipu.opaques import FusedAnchor, FusedGraph, FusionMap
from backends.ipu.popef.schema import Anchor
from backends.ipu.program import MemoryAccount
from compiler.target import SourceModel

#: What only the model that runs takes; every other category is there for all of them.
_SHARED = frozenset({"activations", "temporary"})


def graph_name(index: int) -> str:
    """What a fused program calls its model number `index`."""
    return f"graph{index}"


def fusion_map(graphs: Sequence[CompiledGraph], sources: Sequence[SourceModel]) -> FusionMap:
    """Which streams are whose, for the opaque blob."""
    return FusionMap(
        index_anchor=INDEX_ANCHOR,
        graphs=tuple(
            FusedGraph(
                index=graph.sub_graph.index,
                name=graph.sub_graph.name,
                model=source.model.graph.name,
                inputs=tuple(_fused_anchor(tensor, anchor, graph) for tensor, anchor in graph.inputs),
                outputs=tuple(_fused_anchor(tensor, anchor, graph) for tensor, anchor in graph.outputs),
            )
            for graph, source in zip(graphs, sources, strict=True)
        ),
    )


def fused_memory(graphs: Sequence[CompiledGraph], *, hardware: IpuHardware, io_tiles: int) -> tuple[MemoryAccount, ...]:
    """The accounts of all IPUs with all models on them.

    Raises:
        OutOfTileMemory: together they do not fit, though each does.
    """
    accounts: dict[int, list[MemoryAccount]] = {}
    for graph in graphs:
        for each in graph.plan.memory:
            accounts.setdefault(each.ipu, []).append(each)
    return tuple(_together(accounts[ipu], [graph.sub_graph.name for graph in graphs], hardware, io_tiles) for ipu in sorted(accounts))


def _together(accounts: Sequence[MemoryAccount], names: Sequence[str], hardware: IpuHardware, io_tiles: int) -> MemoryAccount:
    # The moment counts at which one model's activations and temporary data take most, not the largest of each.
    busiest = max(accounts, key=lambda each: sum(each.by_category.get(key, 0) for key in _SHARED))
    categories = sorted({key for each in accounts for key in each.by_category})
    merged = {
        key: busiest.by_category.get(key, 0) if key in _SHARED else sum(each.by_category.get(key, 0) for each in accounts)
        for key in categories
    }
    # Runtime support and vertex code are on a tile once, however many models it runs.
    merged["code"] = merged.get("code", 0) - (len(accounts) - 1) * math.ceil(FITTED.fixed_code_bytes)
    io_tile_bytes = sum(each.tile_bytes[-1] for each in accounts) if io_tiles else 0
    tile_bytes = (sum(merged.values()),) * (hardware.tiles - io_tiles) + (io_tile_bytes,) * io_tiles
    together = replace(busiest, by_category=merged, total_bytes=sum(tile_bytes), tile_bytes=tile_bytes)
    holders = sorted(((f"{key} of all models", size) for key, size in merged.items()), key=lambda item: -item[1])
    check_fit(together, name=" + ".join(names), holders=holders)
    return together


def _fused_anchor(tensor: str, anchor: Anchor, graph: CompiledGraph) -> FusedAnchor:
    alias = f"{graph.sub_graph.name}/{tensor}"
    return FusedAnchor(
        anchor=anchor.name,
        tensor=tensor,
        aliases=() if alias == anchor.name else (alias,),
        shape=anchor.tensor_info.shape,
        dtype=anchor.tensor_info.data_type.numpy.name,
    )
