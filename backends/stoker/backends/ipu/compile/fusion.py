"""Several models in one program: one resident executable instead of reloads, a model selected by `index` for each call.

Weights and code of all models are on the device all the time, as are their stream buffers; what a model needs while it runs is shared,
since only one runs at a time.
"""

from collections.abc import Sequence

from stoker.backends.ipu.compile.memory import FusedPart, check_fit, fused_accounts
from stoker.backends.ipu.compile.streams import INDEX_ANCHOR
from stoker.backends.ipu.compile.sub_graph import CompiledGraph
from stoker.backends.ipu.opaques import FusedAnchor, FusedGraph, FusionMap
from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.program import MemoryAccount
from stoker.compiler.target import SourceModel


def graph_name(index: int) -> str:
    """The name that a fused program gives its model number `index`."""
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


def fused_memory(graphs: Sequence[CompiledGraph], *, io_tiles: int) -> tuple[MemoryAccount, ...]:
    """The accounts of all IPUs with all models on them.

    Raises:
        OutOfTileMemory: together they do not fit, though each does.
    """
    parts = [FusedPart(graph.sub_graph.name, graph.plan.memory) for graph in graphs]
    accounts = []
    for account, holders in fused_accounts(parts, io_tiles=io_tiles):
        check_fit(account, name=" + ".join(part.name for part in parts), holders=holders)
        accounts.append(account)
    return tuple(accounts)


def _fused_anchor(tensor: str, anchor: Anchor, graph: CompiledGraph) -> FusedAnchor:
    alias = f"{graph.sub_graph.name}/{tensor}"
    return FusedAnchor(
        anchor=anchor.name,
        tensor=tensor,
        aliases=() if alias == anchor.name else (alias,),
        shape=anchor.tensor_info.shape,
        dtype=anchor.tensor_info.data_type.numpy.name,
    )
