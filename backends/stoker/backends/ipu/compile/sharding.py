"""Where nodes run: the IPU and pipeline stage that `manual_sharding` marked them with, and what a pipeline asks of these marks.

PopART's rules: a stage lies on one IPU, stages are numbered without gaps, and data go forward only, from a stage to itself or a later one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.typed_graph import node_label

IPU_KEY = "__ipu_number"
STAGE_KEY = "__pipeline_stage"


def placement(node: ir.Node) -> tuple[int, int]:
    """The IPU and pipeline stage that `manual_sharding` gave the node; 0 and 0 where it gave none.

    Raises:
        CompileError: a value is no whole number.
    """
    found = []
    for key in (IPU_KEY, STAGE_KEY):
        attribute = node.attributes.get(key)
        text = node.metadata_props.get(key) if attribute is None else attribute.value
        try:
            found.append(int(text) if text is not None else 0)
        except (TypeError, ValueError):
            raise CompileError(f"node '{node_label(node)}': {key} is {text!r}, expected a whole number") from None
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Placement:
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
        self._placements: Mapping[ir.Node, Placement] = {node: Placement(*placement(node)) for node in graph}
        nodes = list(self._placements.values())
        self._first, self._last = (nodes[0], nodes[-1]) if nodes else (Placement(), Placement())
        if is_pipelined:
            self._check_pipeline()

    def of(self, node: ir.Node) -> Placement:
        """Where `node` of the graph runs."""
        return self._placements[node]

    def of_input(self, value: ir.Value) -> Placement:
        """Where a stream arrives: at the first node that reads it."""
        readers = {use.node for use in value.uses()}
        return next((placement for node, placement in self._placements.items() if node in readers), self._first)

    def of_output(self, value: ir.Value) -> Placement:
        """Where a stream leaves: at the node that makes it."""
        producer = value.producer()
        return self._last if producer is None else self._placements.get(producer, self._last)

    @property
    def stages(self) -> int:
        """How many pipeline stages there are."""
        return len({placement.stage for placement in self._placements.values()} | {0})

    def _check_pipeline(self) -> None:
        stage_ipus: dict[int, tuple[int, str]] = {}
        for node, at in self._placements.items():
            label = node_label(node)
            ipu, other = stage_ipus.setdefault(at.stage, (at.ipu, label))
            if ipu != at.ipu:
                raise CompileError(
                    f"pipeline stage {at.stage} must lie on one IPU: node '{other}' is on IPU {ipu}, node '{label}' on {at.ipu}"
                )
            for value in node.inputs:
                producer = None if value is None else value.producer()
                before = None if producer is None else self._placements.get(producer)
                if before is not None and before.stage > at.stage:
                    raise CompileError(
                        f"node '{label}' of pipeline stage {at.stage} reads '{value.name if value else ''}', which only stage "
                        f"{before.stage} makes; data go to later stages only"
                    )
        missing = sorted(set(range(max(stage_ipus, default=0) + 1)) - set(stage_ipus))
        if missing:
            raise CompileError(
                f"no node is in pipeline stage {missing[0]}, though there is a stage {max(stage_ipus)}; number them without gaps"
            )
