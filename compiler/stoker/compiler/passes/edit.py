"""Helpers for graph changes and queries that many passes need."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: Key in `Graph.meta` (not serialised) that marks a function body; function bodies cannot hold initialisers.
FUNCTION_BODY = "stoker.function_body"


def traverse_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yields the main graph and its sub-graphs, outer before inner, then the same for every function.

    The caller may change the graphs during the iteration; graphs that are added meanwhile may be missed.
    """
    yield from _with_subgraphs(model.graph)
    for function in list(model.functions.values()):
        function.graph.meta[FUNCTION_BODY] = True
        yield from _with_subgraphs(function.graph)


def traverse_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of every graph, except nodes that are removed during the iteration."""
    for graph in traverse_graphs(model):
        for node in tuple(graph):
            if node.graph is graph:
                yield node


def traverse_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yields inputs and outputs of every graph and outputs of every node, but no initialisers that are not inputs."""
    for graph in traverse_graphs(model):
        yield from graph.inputs
        yield from graph.outputs
        for node in graph:
            yield from node.outputs


def subgraphs_of(node: ir.Node) -> list[ir.Graph]:
    """Returns the graphs in the attributes of `node`, such as the two branches of an If."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def _with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    for node in tuple(graph):
        if node.graph is graph:
            for inner in subgraphs_of(node):
                yield from _with_subgraphs(inner)


def describe(node: ir.Node) -> str:
    """Returns the text for `node` in messages: `node 'conv1' (Conv, making 'y')`."""
    domain = f"{node.domain}::" if node.domain else ""
    made = ", ".join(f"'{output.name}'" for output in node.outputs if output.name)
    return f"node '{node.name or ''}' ({domain}{node.op_type}, making {made or 'nothing'})"


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Returns whether `node` is one of these operators of ONNX's default domain."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Returns the node that computes `value`, if it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if is_op(node, *op_types) else None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Returns the input at `index`; None if it is omitted or the list is shorter."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns the tensor of an initialiser that callers cannot override, or of a Constant node; None for other values."""
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is None:
        return value.const_value if value.is_initializer() else None
    if not is_op(producer, "Constant") or len(producer.attributes) != 1:
        return None
    return ir.convenience.get_const_tensor(value)


def constant_of(value: ir.Value | None) -> NDArray[Any] | None:
    """Returns `constant_tensor` as a read-only array; None for strings too."""
    tensor = constant_tensor(value)
    return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor.numpy()


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """Returns the numbers of a constant integer tensor of rank 0 or 1, such as axes or shapes."""
    array = constant_of(value)
    return None if array is None or array.dtype.kind not in "iu" else [int(each) for each in array.reshape(-1)]


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Returns the shape if all its dimensions are known, else None."""
    if value is None:
        return None
    shape = value.shape
    if shape is None:
        tensor = constant_tensor(value)
        shape = None if tensor is None else ir.Shape(tensor.shape.numpy())
    if shape is None or not all(isinstance(dim, int) for dim in shape.dims):
        return None
    return tuple(dim for dim in shape.dims if isinstance(dim, int))


def rank_of(value: ir.Value | None) -> int | None:
    """Returns the number of dimensions, even if the sizes are unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def only_use(value: ir.Value) -> ir.Node | None:
    """Returns the only reader of `value`, if it reads it once and no other node, sub-graph or graph output uses the value."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def substitute(old: ir.Value, new: ir.Value) -> bool:
    """Makes everything that reads `old` read `new`; afterwards `old` is unused, and its node can be removed.

    If `old` is an output of its graph, `new` takes its name. If `new` cannot (it is an input, an initialiser, already an output, or from an
    outer graph), an Identity keeps the name and `new` stays unchanged.

    Returns:
        Whether anything changed: not if `old` is an output and comes from just such an Identity.
    """
    producer = old.producer()
    graph = old.graph
    if old.is_graph_output() and producer is not None and graph is not None:
        source = new.producer()
        if source is None or new.is_graph_output() or source.graph is not producer.graph:
            if is_op(producer, "Identity"):
                return False
            name, old.name = old.name, None
            kept = ir.Value(name=name, shape=old.shape, type=old.type)
            graph.insert_after(producer, ir.Node("", "Identity", [new], outputs=[kept], name=producer.name))
            for index, output in enumerate(graph.outputs):
                if output is old:
                    graph.outputs[index] = kept
        else:
            new.name, old.name = old.name, None
    if new.shape is None:
        new.shape = old.shape
    if new.type is None:
        new.type = old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return True


def bypass(node: ir.Node, value: ir.Value | None = None) -> bool:
    """Replaces the single output of a node by `value` (default: its first input) and removes the node. Returns whether anything changed."""
    value = node.inputs[0] if value is None else value
    if value is None or not substitute(node.outputs[0], value):
        return False
    remove(node)
    return True


def remove(node: ir.Node) -> None:
    """Removes a node without readers."""
    graph = node.graph
    if graph is not None:
        graph.remove(node, safe=True)


def remove_if_unused(node: ir.Node | None) -> None:
    """Removes a node if none of its outputs is read or is a graph output."""
    if node is not None and node.graph is not None and not any(output.uses() or output.is_graph_output() for output in node.outputs):
        remove(node)


def new_constant(node: ir.Node, array: NDArray[Any] | ir.TensorProtocol, role: str) -> ir.Value:
    """Adds a constant for `node`, named after the node's output and `role`: an initialiser of its graph, or a Constant node in a
    function.
    """
    graph = node.graph
    assert graph is not None, "a constant was asked for by a node that is in no graph"
    return place_constant(node, array, unused_name(graph, f"{node.outputs[0].name}_{role}"))


def place_constant(node: ir.Node, array: NDArray[Any] | ir.TensorProtocol, name: str) -> ir.Value:
    """Adds a constant with the unused name `name` for `node` and later nodes; see `new_constant`."""
    graph = node.graph
    assert graph is not None, "a constant was asked for by a node that is in no graph"
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name) if isinstance(array, np.ndarray) else array
    value = ir.Value(name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
    if graph.meta.get(FUNCTION_BODY):
        graph.insert_before(node, ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value]))
    else:
        value.const_value = tensor
        graph.register_initializer(value)
    return value


def unused_name(graph: ir.Graph, wanted: str) -> str:
    """Returns `wanted`, with a number appended if a value of `graph` has that name."""
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    taken.update(output.name for node in graph for output in node.outputs)
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def replace_node(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
) -> ir.Node:
    """Replaces one node by another with the same name, outputs and metadata. Returns the new node."""
    graph = node.graph
    assert graph is not None, "the node to be replaced is in no graph"
    outputs = [ir.Value(name=output.name, shape=output.shape, type=output.type) for output in node.outputs]
    made = ir.Node(
        domain,
        op_type,
        inputs,
        ir.convenience.convert_attributes(attributes or {}),
        outputs=outputs,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, made)
    for old, new in zip(node.outputs, outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return made


class Chain:
    """Adds nodes before `node` in the order of the calls; they and their outputs get names derived from `node`."""

    def __init__(self, node: ir.Node) -> None:
        self.nodes: list[ir.Node] = []
        self._node = node

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], role: str, **attributes: Any) -> ir.Value:
        """Adds one node and returns its output, which gets the element type of the first input."""
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
        """Returns `value` in element type `kind`, with a Cast if required."""
        if value.dtype == kind:
            return value
        made = self.add("Cast", [value], role, to=int(kind))
        made.type = ir.TensorType(kind)
        return made
