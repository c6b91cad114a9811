"""`merge_if_with_same_cond`: choices made on one condition are made once."""

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op
from stoker.compiler.passes.matching.edges import is_ancestor, values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs

_BRANCHES = ("then_branch", "else_branch")


@register("merge_if_with_same_cond")
class MergeIfWithSameCond(Pass):
    """Merges If nodes of one graph that share a condition into one with the outputs of all. Exact.

    A later If that needs a result of an earlier one stays apart, since a branch gives its results only at its end.
    """

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        changed = False
        for graph in list(traverse_graphs(model)):
            by_condition: dict[ir.Value, list[ir.Node]] = {}
            for node in graph:
                if is_op(node, "If") and node.inputs[0] is not None and _can_move(node):
                    by_condition.setdefault(node.inputs[0], []).append(node)
            merged = [_merge_all(editor, nodes) for nodes in by_condition.values()]
            if any(merged):
                graph.sort()  # readers of an earlier If may stand before the one it went into
                changed = True
        return changed


def _can_move(node: ir.Node) -> bool:
    """Whether every result of both branches is made inside its branch."""
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
    """Gives `later` the branches and the outputs of `earlier`."""
    for name in _BRANCHES:
        _absorb(editor, later.attributes[name].as_graph(), earlier.attributes[name].as_graph())
    first_new = len(later.outputs)
    later.resize_outputs(first_new + len(earlier.outputs))
    for old, new in zip(earlier.outputs, later.outputs[first_new:], strict=True):
        editor.replace(old, new)
    editor.remove_dead(earlier)


def _absorb(editor: GraphEditor, into: ir.Graph, branch: ir.Graph) -> None:
    """Moves all of `branch` behind the nodes and outputs of `into`, with fresh names: branches of two nodes may use the same ones."""
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
