"""`GraphEditor`: inserts nodes and constants into a model and removes dead ones; names stay unique over all its graphs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from stoker.backends.api.nearest import nearest
from stoker.compiler.errors import PassError
from stoker.compiler.passes.edit import describe, place_constant, subgraphs_of, substitute, traverse_graphs, traverse_nodes
from stoker.compiler.passes.matching.edges import values_read_by


class GraphEditor:
    """Changes one model. Create one per run of a pass: the constructor reads the names in use."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names: set[str] = set()
        for graph in traverse_graphs(model):
            self._names |= {value.name or "" for value in graph.inputs} | set(graph.initializers)
            for node in graph:
                self._names |= {node.name or ""} | {output.name or "" for output in node.outputs}

    def fresh_name(self, hint: str) -> str:
        """Reserves and returns `hint`, or `hint` with the first number that makes it unique."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def constant(self, near: ir.Node, array: ArrayLike, hint: str) -> ir.Value:
        """A constant for `near` and nodes after it: an initialiser of its graph, or a Constant node in front of it in a function."""
        return place_constant(near, np.asarray(array), self.fresh_name(hint))

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        attributes: Mapping[str, Any] | None = None,
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
            attributes: Its attributes, as plain Python values.
            domain: Of the operator.
            name: For the node and its output; otherwise made from the name of `before`.
            like: A value whose dtype and shape the output has.
            dtype: Of the output, where it differs from that of `like`.
            shape: Of the output, where it differs from that of `like`.
            metadata: The node's metadata_props.
        """
        label = name or f"{before.name or before.op_type}/{op_type}"
        output = self._new_output(f"{label}:out", like, dtype, shape)
        self._insert(before, op_type, inputs, [output], label, attributes, domain, metadata)
        return output

    def insert_many(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        dtypes: Sequence[ir.DataType | None],
        shapes: Sequence[Sequence[int] | None],
        attributes: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> tuple[ir.Value, ...]:
        """The outputs of a new node in front of `before`, one for each of `dtypes` and `shapes`."""
        label = name or f"{before.name or before.op_type}/{op_type}"
        kinds = zip(dtypes, shapes, strict=True)
        outputs = [self._new_output(f"{label}:{index}", None, dtype, shape) for index, (dtype, shape) in enumerate(kinds)]
        self._insert(before, op_type, inputs, outputs, label, attributes, "", None)
        return tuple(outputs)

    def insert_split(
        self,
        before: ir.Node,
        value: ir.Value,
        sizes: Sequence[int],
        axis: int,
        *,
        name: str | None = None,
        shapes: Sequence[Sequence[int] | None] = (),
    ) -> tuple[ir.Value, ...]:
        """The outputs of a new Split of `value` in front of `before`; `shapes` where they are known."""
        label = name or f"{before.name or before.op_type}/Split"
        lengths = self.constant(before, np.asarray(sizes, np.int64), f"{label}/sizes")
        known = shapes or [None] * len(sizes)
        dtypes = [value.dtype] * len(sizes)
        return self.insert_many(before, "Split", [value, lengths], dtypes=dtypes, shapes=known, attributes={"axis": axis}, name=label)

    def insert_after(
        self, node: ir.Node, output: ir.Value, op_type: str, *, name: str, metadata: Mapping[str, str] | None = None
    ) -> ir.Value:
        """Inserts a node with one input and one output between `output` of `node` and all its readers; the new output gets the name."""
        wanted = output.name
        output.name = self.fresh_name(f"{wanted}/before_{op_type}")
        result = ir.Value(name=wanted, shape=output.shape, type=output.type)
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        made = ir.Node("", op_type, [output], outputs=[result], name=self.fresh_name(name), metadata_props=dict(metadata or {}))
        graph_of(node).insert_after(node, made)
        return result

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Replaces `old` by `new` in every reader; `new` gets its name, and its type and shape if those are known.

        REQUIRES: `new` comes from `insert`, in the same graph, before the readers.
        """
        name = old.name
        new.type = old.type if old.type is not None else new.type
        new.shape = old.shape if old.shape is not None else new.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = self.fresh_name(f"{name}/replaced")
        new.name = name

    def bypass(self, old: ir.Value, existing: ir.Value) -> None:
        """Replaces `old` by `existing`, which may be any value, in every reader; a graph output keeps its name."""
        substitute(old, existing)

    def remove_dead(self, *nodes: ir.Node | None) -> None:
        """Removes those of `nodes` whose outputs have no reader, then what fed only them, initialisers included."""
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            if node.graph is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
                continue
            feeds = values_read_by(node)
            for graph in subgraphs_of(node):
                for each in list(graph.all_nodes()):
                    for index in range(len(each.inputs)):
                        each.replace_input_with(index, None)
            graph_of(node).remove(node, safe=True)
            waiting += [producer for value in feeds if (producer := value.producer()) is not None]
            self.drop_unused_initializers(feeds)

    def drop_unused_initializers(self, values: Iterable[ir.Value]) -> None:
        """Removes those of `values` that are initialisers without readers from their graphs."""
        for value in values:
            owner = value.graph
            is_free = value.is_initializer() and not value.uses() and not value.is_graph_input() and not value.is_graph_output()
            if is_free and isinstance(owner, ir.Graph) and value.name is not None and value.name in owner.initializers:
                del owner.initializers[value.name]

    def _new_output(self, hint: str, like: ir.Value | None, dtype: ir.DataType | None, shape: Sequence[int] | None) -> ir.Value:
        kind = dtype if dtype is not None or like is None else like.dtype
        sizes: ir.Shape | None = None
        if shape is not None:
            sizes = ir.Shape(shape)
        elif like is not None and like.shape is not None:
            sizes = ir.Shape(list(like.shape.dims))
        return ir.Value(name=self.fresh_name(hint), shape=sizes, type=None if kind is None else ir.TensorType(kind))

    def _insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        label: str,
        attributes: Mapping[str, Any] | None,
        domain: str,
        metadata: Mapping[str, str] | None,
    ) -> None:
        graph = graph_of(before)
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
            graph.opset_imports.setdefault(domain, 1)
        graph.insert_before(before, node)


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that holds `node`.

    Raises:
        PassError: it was taken out of its graph.
    """
    if not isinstance(node.graph, ir.Graph):
        raise PassError(f"{describe(node)} is in no graph")
    return node.graph


def find_node(model: ir.Model, name: str, *, option: str, op_types: Sequence[str] = ()) -> ir.Node:
    """The node called `name`.

    Args:
        model: Searched with all its sub-graphs.
        name: Of the node.
        option: What the user set, for the error text.
        op_types: Operators it must be one of; any if empty.

    Raises:
        PassError: there is no such node (the text gives the nearest names), there are several, or it is another operator.
    """
    found = [node for node in traverse_nodes(model) if node.name == name]
    if not found:
        names = sorted({node.name for node in traverse_nodes(model) if node.name and (not op_types or node.op_type in op_types)})
        near = nearest(name, names, most=3, closeness=0.4)
        kind = "/".join(op_types) + " node" if op_types else "node"
        hint = (
            f"; nearest: {', '.join(near)}"
            if near
            else f"; the model has no {kind}s with names"
            if not names
            else f"; it has {', '.join(names[:5])}"
        )
        raise PassError(f"{option}: the model has no {kind} named '{name}'{hint}")
    if len(found) > 1:
        raise PassError(f"{option}: {len(found)} nodes are named '{name}'; run unique_name_for_nodes first")
    if op_types and found[0].op_type not in op_types:
        raise PassError(f"{option}: node '{name}' is a {found[0].op_type}, not a {' or '.join(op_types)}")
    return found[0]


def require_unique_names(model: ir.Model, *, option: str) -> None:
    """Raises:
    PassError: a node of the main graph has no name, or one that another has.
    """
    counts = Counter(node.name or "" for node in model.graph)
    if "" in counts:
        unnamed = next(node for node in model.graph if not node.name)
        raise PassError(
            f"{option}: a {unnamed.op_type} node making '{unnamed.outputs[0].name}' has no name; run unique_name_for_nodes first"
        )
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise PassError(f"{option}: node names must be unique; used more than once: {', '.join(twice[:5])}")
