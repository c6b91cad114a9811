"""`rewrite_each`: the loop of most passes that look for a pattern around nodes of certain operators."""

from collections.abc import Callable

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.node_pass import blamed_on
from stoker.compiler.passes.traverse import traverse_nodes

Rewrite = Callable[[GraphEditor, ir.Node], bool]


def rewrite_each(model: ir.Model, rewrite: Rewrite, *op_types: str) -> bool:
    """Tries `rewrite` on every node of these operators (main domain; any operator if none is named), sub-graphs included.

    Nodes come in graph order, and those that an earlier call took out are passed over. Returns whether any call changed the model.
    """
    editor = GraphEditor(model)
    changed = False
    for node in traverse_nodes(model):
        if not op_types or is_op(node, *op_types):
            with blamed_on(node):
                changed |= rewrite(editor, node)
    return changed
