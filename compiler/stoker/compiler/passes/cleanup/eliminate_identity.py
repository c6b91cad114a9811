"""`eliminate_identity`: values do not need two names."""

import onnx_ir as ir

from stoker.compiler.marks import REMAP
from stoker.compiler.passes.edit import bypass, is_op
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_identity")
class EliminateIdentity(NodePass):
    """Removes Identity nodes, except where one gives an input, an initialiser or a second output its name as a graph output.

    Those that stand for a layout remap stay too: `auto_insert_remap` asked for them.
    """

    def visit(self, node: ir.Node) -> bool:
        return is_op(node, "Identity") and REMAP not in node.metadata_props and bypass(node)
