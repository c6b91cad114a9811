"""Walks over everything a model computes: its main graph, the bodies of If, Loop and Scan at any depth, and its functions."""

from collections.abc import Iterator

import onnx_ir as ir

#: Key in `Graph.meta` (which is not written to files) of a graph that is the body of a function: it can hold no initialisers.
FUNCTION_BODY = "stoker.function_body"


def traverse_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, then the graphs inside it, outer before inner; then the same of every function.

    The graphs may be changed while they are walked over; graphs that appear meanwhile may be missed.
    """
    yield from _with_subgraphs(model.graph)
    for function in list(model.functions.values()):
        function.graph.meta[FUNCTION_BODY] = True
        yield from _with_subgraphs(function.graph)


def traverse_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of every graph; a node removed meanwhile is not visited."""
    for graph in traverse_graphs(model):
        for node in tuple(graph):
            if node.graph is graph:
                yield node


def traverse_values(model: ir.Model) -> Iterator[ir.Value]:
    """Inputs and outputs of every graph, and outputs of every node; not initialisers that are no inputs."""
    for graph in traverse_graphs(model):
        yield from graph.inputs
        yield from graph.outputs
        for node in graph:
            yield from node.outputs


def subgraphs_of(node: ir.Node) -> list[ir.Graph]:
    """Graphs in the attributes of `node` itself, such as the two branches of an If."""
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
