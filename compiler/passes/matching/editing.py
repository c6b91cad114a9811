"""`GraphEditor`: putting nodes and constants into a model and taking dead ones out, with names that stay unique over all its graphs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from compiler.errors import PassError
from compiler.passes.matching.edges import graphs_in

AttributeValue = int | float | str | Sequence[int] | Sequence[float] | ir.Graph


class GraphEditor:
    """Changes one model. Make one per run of a pass: it has read the names that were in use when it was made."""

    def __init__(self, model: ir.Model) -> None:
        self._names: set[str] = set()
        for graph in model.graphs():
            self._names |= {value.name or "" for value in graph.inputs} | set(graph.initializers)
            for node in graph:
                self._names |= {node.name or ""} | {output.name or "" for output in node.outputs}
        self._model = model

    def fresh_name(self, hint: str) -> str:
        """`hint`, or with the first number that makes it new; it is then taken."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def constant(self, graph: ir.Graph, array: ArrayLike, hint: str) -> ir.Value:
        """A new initialiser of `graph`."""
        name = self.fresh_name(hint)
        tensor = ir.tensor(np.asarray(array), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        graph.register_initializer(value)
        return value

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        domain: str = "",
        name: str | None = None,
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
        shape: Sequence[int] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ir.Value:
        """The output of a new node in front of `before`.

        Args:
            before: A node of the graph that the new one goes into.
            op_type: Operator; `domain` is imported at version 1 if the model does not import it yet.
            inputs: Its inputs; None where an optional one is left out.
            attributes: Its attributes, of plain Python types.
            domain: Of the operator.
            name: For the node and its output; otherwise made from the name of `before`.
            like: A value whose dtype and shape the output has.
            dtype: Of the output, where it differs from that of `like`.
            shape: Of the output, where it differs from that of `like`.
            metadata: The node's metadata_props.
        """
        return self.insert_many(
            before,
            op_type,
            inputs,
            1,
            attributes=attributes,
            domain=domain,
            name=name,
            like=like,
            dtype=dtype,
            shapes=[shape],
            metadata=metadata,
        )[0]

    def insert_many(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        count: int,
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        domain: str = "",
        name: str | None = None,
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
        shapes: Sequence[Sequence[int] | None] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[ir.Value, ...]:
        """As `insert`, for a node with `count` outputs."""
        graph = graph_of(before)
        label = name or f"{before.name or before.op_type}/{op_type}"
        outputs = []
        for index in range(count):
            known = shapes[index] if index < len(shapes) else None
            shape = ir.Shape(known) if known is not None else like.shape.copy() if like is not None and like.shape is not None else None
            wanted = dtype if dtype is not None else like.dtype if like is not None else None
            output_name = self.fresh_name(f"{label}:{index}" if count > 1 else f"{label}:out")
            outputs.append(ir.Value(name=output_name, shape=shape, type=None if wanted is None else ir.TensorType(wanted)))
        node = ir.Node(
            domain,
            op_type,
            inputs,
            ir.convenience.convert_attributes(dict(attributes or {})),
            outputs=outputs,
            name=self.fresh_name(label),
            metadata_props=dict(metadata or {}),
        )
        if domain:
            self._model.opset_imports.setdefault(domain, 1)
        graph.insert_before(before, node)
        return tuple(outputs)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Lets every reader of `old` read `new`, which takes over its name, type and shape; a graph output keeps its name.

        REQUIRES: `new` was made by `insert` and comes before the readers; it is not a graph's input, initialiser or output.
        """
        name = old.name
        if new.type is None:
            new.type = old.type
        if old.shape is not None:
            new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = self.fresh_name(f"{name}/replaced")
        new.name = name

    def bypass(self, old: ir.Value, existing: ir.Value) -> None:
        """Lets every reader of `old` read `existing`, any value; where `old` is a graph output an Identity keeps its name."""
        producer = old.producer()
        if old.is_graph_output():
            if producer is None:
                raise PassError(f"tensor '{old.name}' has no node that could be replaced")
            self.replace(old, self.insert(producer, "Identity", [existing], like=existing))
        else:
            old.replace_all_uses_with(existing)

    def remove_dead(self, *nodes: ir.Node | None) -> None:
        """Takes out those of `nodes` that nobody reads any more, then what fed only them, initialisers included."""
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            if node.graph is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
                continue
            feeds = [value for value in node.inputs if value is not None]
            for graph in graphs_in(node):
                inner = list(graph.all_nodes())
                feeds += [value for each in inner for value in each.inputs if value is not None]
                for each in inner:
                    for index in range(len(each.inputs)):
                        each.replace_input_with(index, None)
            graph_of(node).remove(node, safe=True)
            waiting += [producer for value in feeds if (producer := value.producer()) is not None]
            self.drop_unused_initializers(feeds)

    def drop_unused_initializers(self, values: Iterable[ir.Value]) -> None:
        """Takes those of `values` that are initialisers without readers out of their graphs."""
        for value in values:
            if value.is_initializer() and not value.uses() and not value.is_graph_input() and not value.is_graph_output():
                owner: Any = value.graph
                if owner is not None and value.name in owner.initializers:
                    del owner.initializers[value.name]


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that holds `node`.

    Raises:
        PassError: it is in none, or in a model-local function (they are inlined before passes run).
    """
    if not isinstance(node.graph, ir.Graph):
        raise PassError(f"node '{node.name}' ({node.op_type}) stands in a function or in no graph; functions must be inlined first")
    return node.graph
