"""Where nodes run: the IPU and pipeline stage that `manual_sharding` marked them with, and what a pipeline asks of these marks.

PopART's rules: a stage lies on one IPU, stages are numbered without gaps, and data go forward only, from a stage to itself or a later one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from stoker.backends.ipu.compile.placement import placement
from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.tensor_facts import node_label


@dataclass(frozen=True, slots=True)
class Place:
    """An IPU of the replica, and a pipeline stage."""

    ipu: int = 0
    stage: int = 0


class Sharding:
    """The places of all nodes of a graph, and of its streams."""

    def __init__(self, graph: ir.Graph, *, is_pipelined: bool) -> None:
        """Reads the marks.

        Raises:
            CompileError: a mark is no whole number, or the graph is to be pipelined and breaks a rule; names the nodes.
        """
        self._places: Mapping[ir.Node, Place] = {node: Place(*placement(node)) for node in graph}
        nodes = list(self._places.values())
        self._first, self._last = (nodes[0], nodes[-1]) if nodes else (Place(), Place())
        if is_pipelined:
            self._check_pipeline()

    def of(self, node: ir.Node) -> Place:
        """Where `node` of the graph runs."""
        return self._places[node]

    def of_input(self, value: ir.Value) -> Place:
        """Where a stream arrives: at the first node that reads it."""
        readers = {use.node for use in value.uses()}
        return next((place for node, place in self._places.items() if node in readers), self._first)

    def of_output(self, value: ir.Value) -> Place:
        """Where a stream leaves: at the node that makes it."""
        producer = value.producer()
        return self._last if producer is None else self._places.get(producer, self._last)

    @property
    def stages(self) -> int:
        """How many pipeline stages there are."""
        return len({place.stage for place in self._places.values()} | {0})

    def _check_pipeline(self) -> None:
        homes: dict[int, tuple[int, str]] = {}
        for node, place in self._places.items():
            label = node_label(node)
            ipu, other = homes.setdefault(place.stage, (place.ipu, label))
            if ipu != place.ipu:
                raise CompileError(
                    f"pipeline stage {place.stage} must lie on one IPU: node '{other}' is on IPU {ipu}, node '{label}' on {place.ipu}"
                )
            for value in node.inputs:
                producer = None if value is None else value.producer()
                before = None if producer is None else self._places.get(producer)
                if before is not None and before.stage > place.stage:
                    raise CompileError(
                        f"node '{label}' of pipeline stage {place.stage} reads '{value.name if value else ''}', which only stage "
                        f"{before.stage} makes; data go to later stages only"
                    )
        missing = sorted(set(range(max(homes, default=0) + 1)) - set(homes))
        if missing:
            raise CompileError(f"no node is in pipeline stage {missing[0]}, though there is a stage {max(homes)}; number them without gaps")
