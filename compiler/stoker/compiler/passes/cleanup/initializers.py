"""Passes that convert constants to initialisers, and remove, merge or move initialisers."""

import hashlib

import onnx_ir as ir
from onnx_ir.passes.common import LiftSubgraphInitializersToMainGraphPass, NameFixPass, RemoveInitializersFromInputsPass

from stoker.compiler.passes.edit import FUNCTION_BODY, constant_tensor, new_constant, remove, subgraphs_of, substitute, traverse_graphs
from stoker.compiler.passes.registry import model_pass, node_pass


@node_pass("Constant")
def extract_constant_to_initializer(node: ir.Node) -> bool:
    """Turns Constant nodes into initialisers of their graph with the same name. Graph outputs and sparse constants stay."""
    graph = node.graph
    if graph is None or graph.meta.get(FUNCTION_BODY) or "sparse_value" in node.attributes:
        return False
    old = node.outputs[0]
    tensor = constant_tensor(old)
    if tensor is None or old.is_graph_output():
        return False
    name = old.name
    new = new_constant(node, tensor, "value")
    substitute(old, new)
    remove(node)
    new.name = name
    return True


@model_pass()
def eliminate_unused_initializer(model: ir.Model) -> bool:
    """Removes initialisers that no node reads and that are no graph output. Initialisers that are also inputs stay, as part of the
    signature.
    """
    changed = False
    for graph in traverse_graphs(model):
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]
                changed = True
    return changed


@model_pass()
def move_subgraph_initializer(model: ir.Model) -> bool:
    """Moves initialisers of sub-graphs to the main graph. A name that is in use there or in another sub-graph gets a number."""
    if not LiftSubgraphInitializersToMainGraphPass()(model).modified:
        return False
    NameFixPass()(model)  # a sibling graph may use the name that is now visible in it
    return True


@model_pass()
def remove_initializer_from_input(model: ir.Model) -> bool:
    """Removes initialisers from the list of inputs (IR versions before 4 list them all). They become constants."""
    return bool(RemoveInitializersFromInputsPass()(model).modified)


Known = dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value]
"""Initialisers that may be read, by element type, shape and digest of their bytes."""


def merge_equal(graph: ir.Graph, known: Known) -> bool:
    """Replaces initialisers of `graph` that equal one in `known` or an earlier one of `graph`; adds the others to `known`.

    Initialisers are compared by the SHA-256 of their bytes, so -0.0 and 0.0, and different NaNs, stay distinct.
    """
    changed = False
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output() or tensor.dtype == ir.DataType.STRING:
            continue
        key = (tensor.dtype, tuple(int(size) for size in tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())
        earlier = known.setdefault(key, value)
        if earlier is not value:
            value.replace_all_uses_with(earlier)
            del graph.initializers[name]
            changed = True
    return changed


@model_pass()
def eliminate_duplicate_initializer(model: ir.Model) -> bool:
    """Merges initialisers with the same bytes; initialisers that are inputs or outputs of a graph stay."""
    changed = False
    for graph in traverse_graphs(model):
        changed = merge_equal(graph, {}) or changed
    return changed


@model_pass()
def remove_duplicated_initializer(model: ir.Model) -> bool:
    """Merges equal initialisers like `eliminate_duplicate_initializer`, also between a sub-graph and the graphs around it."""
    changed = _merge_inwards(model.graph, {})
    for function in model.functions.values():
        changed = _merge_inwards(function.graph, {}) or changed
    return changed


def _merge_inwards(graph: ir.Graph, outer: Known) -> bool:
    known = dict(outer)
    changed = merge_equal(graph, known)
    for node in graph:
        for inner in subgraphs_of(node):
            changed = _merge_inwards(inner, known) or changed
    return changed
