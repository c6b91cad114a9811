"""`extract_constant_to_initializer`: constants are weights."""

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_tensor, is_op, new_constant, remove, substitute
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import FUNCTION_BODY


@register("extract_constant_to_initializer")
class ExtractConstantToInitializer(NodePass):
    """Turns Constant nodes into initialisers of their graph, under the same name. One that is a graph output stays, sparse ones too."""

    def visit(self, node: ir.Node) -> bool:
        graph = node.graph
        if not is_op(node, "Constant") or graph is None or graph.meta.get(FUNCTION_BODY) or "sparse_value" in node.attributes:
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
