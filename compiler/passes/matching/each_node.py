"""`rewrite_each`: the loop of most passes that look for a pattern around nodes of certain operators."""

from collections.abc import Callable

import onnx_ir as ir

from compiler.passes.matching.edges import is_op
from compiler.passes.matching.editing import GraphEditor

Rewrite = Callable[[GraphEditor, ir.Node], bool]


def rewrite_each(model: ir.Model, rewrite: Rewrite, *op_types: str) -> bool:
    """Tries `rewrite` on every node of these operators (main domain; any operator if none is named), sub-graphs included.

    Nodes come in graph order, and those that an earlier call took out are passed over. Returns whether any call changed the model.
    """
    editor = GraphEditor(model)
    changed = False
    for graph in list(model.graphs()):
        for node in list(graph):
            if node.graph is graph and (not op_types or is_op(node, *op_types)):
                changed |= rewrite(editor, node)
    return changed
