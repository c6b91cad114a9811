"""Which outputs of a model are random: they differ from run to run, or from runtime to runtime, and cannot be compared."""

from collections.abc import Iterable

import onnx

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def random_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """The outputs that depend on an operator of random numbers."""
    functions = {(each.domain, each.name) for each in model.functions if any(_is_random(node, ()) for node in each.node)}
    random: set[str] = set()
    for node in model.graph.node:
        if _is_random(node, functions) or any(name in random for name in _read(node)):
            random.update(name for name in node.output if name)
    return frozenset(value.name for value in model.graph.output if value.name in random)


def _is_random(node: onnx.NodeProto, functions: Iterable[tuple[str, str]]) -> bool:
    """Whether it, a node within it, or the function that it calls gives random numbers."""
    if (node.op_type in _RANDOM and node.domain in ("", "ai.onnx")) or (node.domain, node.op_type) in functions:
        return True
    return any(_is_random(inner, functions) for graph in _graphs(node) for inner in graph.node)


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """What it and the nodes within it read."""
    yield from node.input
    for graph in _graphs(node):
        for inner in graph.node:
            yield from _read(inner)


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
