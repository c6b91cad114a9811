"""`Chain`: nodes put before another one by one, to take its place."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir


class Chain:
    """Adds nodes before `node` in the order of the calls; they and their outputs are named after it."""

    def __init__(self, node: ir.Node) -> None:
        self.nodes: list[ir.Node] = []
        self._node = node

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], role: str, **attributes: Any) -> ir.Value:
        """The output of one more node, which is assumed to be of the element type of its first input."""
        made = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes))
        made.name = f"{self._node.name}_{role}" if self._node.name else None
        made.outputs[0].name = f"{self._node.outputs[0].name}_{role}"
        made.outputs[0].type = inputs[0].type if inputs and inputs[0] is not None else None
        graph = self._node.graph
        assert graph is not None, "a chain replaces a node that is in a graph"
        graph.insert_before(self._node, made)
        self.nodes.append(made)
        return made.outputs[0]

    def cast(self, value: ir.Value, kind: ir.DataType, role: str) -> ir.Value:
        """`value` in element type `kind`: itself if it is of that type."""
        if value.dtype == kind:
            return value
        made = self.add("Cast", [value], role, to=int(kind))
        made.type = ir.TensorType(kind)
        return made
