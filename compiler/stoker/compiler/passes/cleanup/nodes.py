"""Passes that remove unused and duplicate nodes, and that sort and name nodes."""

from collections.abc import Hashable
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from stoker.compiler.errors import PassError
from stoker.compiler.passes.edit import remove, subgraphs_of, substitute, traverse_graphs, traverse_nodes
from stoker.compiler.passes.registry import model_pass


@model_pass()
def eliminate_deadend(model: ir.Model) -> bool:
    """Removes nodes without used outputs, with the initialisers that only they read, and unused optional outputs."""
    return bool(RemoveUnusedNodesPass()(model).modified)


@model_pass()
def eliminate_duplicate_nodes(model: ir.Model) -> bool:
    """Merges nodes of one graph with equal operator, inputs, attributes and metadata.

    Random operators, operators unknown to ONNX, and nodes with sub-graphs stay.
    """
    changed = False
    for graph in traverse_graphs(model):
        first: dict[Hashable, ir.Node] = {}
        for node in tuple(graph):
            if not _is_repeatable(node, model.opset_imports.get("", 1)):
                continue
            earlier = first.setdefault(_identity(node), node)
            if earlier is node:
                continue
            # An Identity that gives a graph output its name stays beside an equal one.
            if all(substitute(mine, theirs) for mine, theirs in zip(node.outputs, earlier.outputs, strict=True)):
                remove(node)
                changed = True
    return changed


def _is_repeatable(node: ir.Node, opset: int) -> bool:
    if node.domain != "" or subgraphs_of(node) or node.op_type in _RANDOM_IN_TRAINING:
        return False
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "")  # the type stubs of onnx lack determinism
    except onnx.defs.SchemaError:
        return False
    return bool(schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.Deterministic)


#: Random only with training_mode; the schema cannot express this.
_RANDOM_IN_TRAINING = frozenset({"Dropout"})


def _identity(node: ir.Node) -> Hashable:
    attributes = tuple(
        (name, ir.to_proto(attribute).SerializeToString(deterministic=True)) for name, attribute in sorted(node.attributes.items())
    )
    outputs = tuple(bool(output.name) for output in node.outputs)
    return (node.op_type, tuple(id(each) for each in node.inputs), outputs, attributes, tuple(sorted(node.metadata_props.items())))


@model_pass()
def sort_graph(model: ir.Model) -> bool:
    """Sorts nodes topologically; independent nodes keep their order."""
    before = [node for graph in traverse_graphs(model) for node in graph]
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError as error:
        raise PassError(f"graph '{model.graph.name}' goes round in a circle: {error}") from error
    return before != [node for graph in traverse_graphs(model) for node in graph]


@model_pass()
def unique_name_for_nodes(model: ir.Model) -> bool:
    """Gives every node a unique name in the whole model: unnamed nodes get their operator's name, duplicates get a number."""
    nodes = list(traverse_nodes(model))
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    changed = False
    for node in nodes:
        if not node.name or node.name in seen:
            wanted = node.name or node.op_type
            node.name = _numbered(wanted, taken, numbers)
            taken.add(node.name)
            changed = True
        seen.add(node.name)
    return changed


def _numbered(wanted: str, taken: set[str], numbers: dict[str, int]) -> str:
    while True:
        numbers[wanted] = numbers.get(wanted, 0) + 1
        name = f"{wanted}_{numbers[wanted]}"
        if name not in taken:
            return name
