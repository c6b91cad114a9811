"""`merge_variant_if`: what only one branch of a choice needs is computed in that branch."""

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import subgraphs_of, traverse_graphs


@register("merge_variant_if")
class MergeVariantIf(Pass):
    """Moves nodes into the branch of an If that alone reads their results, so that they run only when it is taken. Exact.

    Nodes that both branches read, or that anything outside the If reads, stay where they are; so does everything that feeds a loop.
    """

    def run(self, model: ir.Model) -> bool:
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
                # From the back, so that a node's readers have moved before it is looked at.
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
