"""Following the edges of a graph: who makes a value, who reads it, and what is known of its shape."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from compiler.passes.matching.constants import is_constant


def is_op(node: ir.Node | None, *op_types: str, domain: str = "") -> bool:
    """Whether `node` is one of these operators of the domain (the main one unless told)."""
    return node is not None and node.op_type in op_types and node.domain in ({"", "ai.onnx"} if domain == "" else {domain})


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes `value`, if it is one of these operators of the main domain."""
    node = None if value is None else value.producer()
    return node if is_op(node, *op_types) else None


def is_private(value: ir.Value) -> bool:
    """Whether exactly one node input reads `value` and it is no output: what is made from it there can replace it."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The one node that reads a private `value`; None where others would miss it."""
    return value.uses()[0].node if is_private(value) else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The input of a two-input node that is not `value`; None where both are or neither is."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if (first is value) == (second is value):
        return None
    return second if first is value else first


def split_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """(variable, constant) inputs of a two-input node whose order does not matter."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    first, second = node.inputs
    if is_constant(first) == is_constant(second):
        return None
    return (second, first) if is_constant(first) else (first, second)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Sizes of `value`, if all are known."""
    if value is None or value.shape is None:
        return None
    sizes = tuple(each for each in value.shape if isinstance(each, int))
    return sizes if len(sizes) == len(value.shape) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Number of dimensions, if known."""
    return None if value is None or value.shape is None else len(value.shape)


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def ancestors(values: Iterable[ir.Value | None], *, within: ir.Graph | None = None) -> Iterator[ir.Node]:
    """Every node that `values` are made from, each once; with `within` only nodes of that graph."""
    seen: set[ir.Node] = set()
    waiting = [value.producer() for value in values if value is not None]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or (within is not None and node.graph is not within):
            continue
        seen.add(node)
        yield node
        waiting += [value.producer() for value in outside_inputs(node)]


def outside_inputs(node: ir.Node) -> list[ir.Value]:
    """What `node` reads: its inputs, and the values that graphs in its attributes take from outside themselves."""
    found = [value for value in node.inputs if value is not None]
    for graph in graphs_in(node):
        inside = {output for each in graph.all_nodes() for output in each.outputs} | set(graph.inputs) | set(graph.initializers.values())
        for nested in graph.subgraphs():
            inside |= set(nested.inputs) | set(nested.initializers.values())
        read = [value for each in graph.all_nodes() for value in each.inputs] + list(graph.outputs)
        found += [value for value in read if value is not None and value not in inside]
    return found


def graphs_in(node: ir.Node) -> list[ir.Graph]:
    """The graphs that `node` holds as attributes (branches of If, bodies of loops)."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type is ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found
