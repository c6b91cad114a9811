"""Passes that merge If nodes, or replace them by both branches and a selection."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, static_shape, subgraphs_of, traverse_graphs
from stoker.compiler.passes.matching.edges import is_ancestor, values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor, graph_of
from stoker.compiler.passes.matching.rewriting import rewrite_pass
from stoker.compiler.passes.registry import model_pass

#: Types that ONNX Runtime's Where supports (FP16 by an internal cast); booleans are selected with And and Or.
_SELECTABLE = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)

#: Operators that fail on some values or run as long as the data requires; they must not run on values of the other branch.
_UNSAFE = frozenset(
    {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter", "Mod", "Loop", "Scan", "Compress", "NonZero"}
)
_TAKES_A_SHAPE = frozenset({"Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "ConstantOfShape"})


@rewrite_pass("If")
def expand_if(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces an If by both its branches and a selection of their results, so that no control flow is left. Exact.

    Both branches then run every time: worth it where they are small. It is done only where each pair of results has one known shape and a
    type that can be selected, and where no operator of a branch can fail on data meant for the other (indices, divisions of integers,
    shapes that are computed).
    """
    then_branch, else_branch = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    condition = node.inputs[0]
    if condition is None or not all(_is_safe(each) for branch in (then_branch, else_branch) for each in branch.all_nodes()):
        return False
    pairs = list(zip(then_branch.outputs, else_branch.outputs, strict=True))
    if not all(_can_select(chosen, other) for chosen, other in pairs):
        return False
    if static_shape(condition) != ():
        no_dims = editor.constant(node, np.zeros(0, np.int64), f"{node.name or 'If'}/scalar_shape")
        condition = editor.insert(node, "Reshape", [condition, no_dims], dtype=ir.DataType.BOOL, shape=[])
    chosen = _inline(editor, node, then_branch)
    others = _inline(editor, node, else_branch)
    for output, first, second in zip(node.outputs, chosen, others, strict=True):
        editor.replace(output, _select(editor, node, condition, first, second))
    editor.remove_dead(node)
    return True


def _is_safe(node: ir.Node) -> bool:
    if node.op_type in _UNSAFE or (node.domain != "" and node.domain != "com.microsoft"):
        return False
    if is_op(node, "Div"):
        return node.outputs[0].dtype is not None and node.outputs[0].dtype.is_floating_point()
    if node.op_type in _TAKES_A_SHAPE:
        return all(value is None or constant_of(value) is not None for value in node.inputs[1:])
    return True


def _can_select(first: ir.Value, second: ir.Value) -> bool:
    shape = static_shape(first)
    return (
        shape is not None
        and shape == static_shape(second)
        and first.dtype is second.dtype
        and (first.dtype in _SELECTABLE or first.dtype is ir.DataType.BOOL)
    )


def _inline(editor: GraphEditor, node: ir.Node, branch: ir.Graph) -> Sequence[ir.Value]:
    """Moves the nodes and constants of `branch` in front of `node` under new names; returns the branch's results."""
    results = list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        array = constant_of(value)
        assert array is not None, "an initialiser of a branch has a value"
        moved = editor.constant(node, array, str(value.name))
        value.replace_all_uses_with(moved)
        results = [moved if result is value else result for result in results]
        del branch.initializers[str(value.name)]
    nodes = list(branch)
    branch.remove(nodes)
    for each in nodes:
        for output in each.outputs:
            if output.name:
                output.name = editor.fresh_name(output.name)
    graph_of(node).insert_before(node, nodes)
    return results


def _select(editor: GraphEditor, node: ir.Node, condition: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
    if first.dtype is not ir.DataType.BOOL:
        return editor.insert(node, "Where", [condition, first, second], like=first)
    otherwise = editor.insert(node, "Not", [condition], like=condition)
    taken = editor.insert(node, "And", [condition, first], like=first)
    left = editor.insert(node, "And", [otherwise, second], like=first)
    return editor.insert(node, "Or", [taken, left], like=first)


_BRANCHES = ("then_branch", "else_branch")


@model_pass()
def merge_if_with_same_cond(model: ir.Model) -> bool:
    """Merges If nodes of one graph that share a condition into one with the outputs of all. Exact.

    A later If that needs a result of an earlier one stays apart, since a branch gives its results only at its end.
    """
    editor = GraphEditor(model)
    changed = False
    for graph in list(traverse_graphs(model)):
        by_condition: dict[ir.Value, list[ir.Node]] = {}
        for node in graph:
            if is_op(node, "If") and node.inputs[0] is not None and _can_move(node):
                by_condition.setdefault(node.inputs[0], []).append(node)
        merged = [_merge_all(editor, nodes) for nodes in by_condition.values()]
        if any(merged):
            graph.sort()  # readers of an earlier If may stand before the If that replaces it
            changed = True
    return changed


def _can_move(node: ir.Node) -> bool:
    """Returns whether every result of both branches is computed inside its branch."""
    for name in _BRANCHES:
        branch = node.attributes[name].as_graph()
        own = {output for each in branch for output in each.outputs}
        if any(output not in own for output in branch.outputs):
            return False
    return True


def _merge_all(editor: GraphEditor, nodes: list[ir.Node]) -> bool:
    changed = False
    current = nodes[0]
    for later in nodes[1:]:
        if not is_ancestor(current, values_read_by(later)):
            _merge_into(editor, current, later)
            changed = True
        current = later
    return changed


def _merge_into(editor: GraphEditor, earlier: ir.Node, later: ir.Node) -> None:
    """Adds the branches and the outputs of `earlier` to `later`."""
    for name in _BRANCHES:
        _absorb(editor, later.attributes[name].as_graph(), earlier.attributes[name].as_graph())
    first_new = len(later.outputs)
    later.resize_outputs(first_new + len(earlier.outputs))
    for old, new in zip(earlier.outputs, later.outputs[first_new:], strict=True):
        editor.replace(old, new)
    editor.remove_dead(earlier)


def _absorb(editor: GraphEditor, into: ir.Graph, branch: ir.Graph) -> None:
    """Moves all of `branch` behind the nodes and outputs of `into` under new names, since branches of two nodes may share names."""
    outputs = list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        del branch.initializers[str(value.name)]
        value.name = editor.fresh_name(str(value.name))
        into.register_initializer(value)
    nodes = list(branch)
    branch.remove(nodes)
    for node in nodes:
        for output in node.outputs:
            if output.name:
                output.name = editor.fresh_name(output.name)
    into.extend(nodes)
    into.outputs.extend(outputs)


@model_pass()
def merge_variant_if(model: ir.Model) -> bool:
    """Moves nodes into the branch of an If that alone reads their results, so that they run only when it is taken. Exact.

    Nodes that both branches read, or that anything outside the If reads, stay where they are; so does everything that feeds a loop.
    """
    changed = False
    for graph in traverse_graphs(model):
        branch_of = {
            inner: branch
            for node in graph
            if is_op(node, "If")
            for branch in subgraphs_of(node)
            for inner in [branch, *branch.subgraphs()]
            if not any(is_op(each, "Loop", "Scan") for each in branch.all_nodes())
        }
        if branch_of:
            # In reverse order, so that the readers of a node have moved before it is checked.
            changed |= any([_sink(graph, node, branch_of) for node in reversed(list(graph))])  # noqa: C419 - all of them
    return changed


def _sink(graph: ir.Graph, node: ir.Node, branch_of: dict[ir.Graph, ir.Graph]) -> bool:
    if subgraphs_of(node) or any(output.is_graph_output() for output in node.outputs):
        return False
    readers = {use.node.graph for output in node.outputs for use in output.uses()}
    targets = {branch_of.get(reader) if isinstance(reader, ir.Graph) else None for reader in readers}
    target = targets.pop() if len(targets) == 1 else None
    if target is None:
        return False
    graph.remove(node)
    if len(target):
        target.insert_before(target[0], node)
    else:
        target.append(node)
    return True
