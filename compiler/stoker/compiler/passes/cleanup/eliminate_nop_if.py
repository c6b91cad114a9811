"""`eliminate_nop_if`: a choice that is made already."""

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass

from stoker.compiler.passes.edit import constant_of, is_op, new_constant, remove, substitute
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("eliminate_nop_if")
class EliminateNopIf(NodePass):
    """Replaces an If whose condition is constant by the branch that it takes."""

    def run(self, model: ir.Model) -> bool:
        if not super().run(model):
            return False
        NameFixPass()(model)  # names of a branch were its own; around it they may be taken
        return True

    def visit(self, node: ir.Node) -> bool:
        condition = constant_of(node.inputs[0]) if is_op(node, "If") else None
        graph = node.graph
        if condition is None or graph is None or condition.size != 1:
            return False
        branch = node.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"].as_graph()
        results = list(branch.outputs)
        branch.outputs.clear()
        constants = list(branch.initializers.values())
        branch.initializers.clear()
        for value in constants:
            tensor = value.const_value
            assert tensor is not None, "an initialiser has a value"
            moved = new_constant(node, tensor, str(value.name))
            value.replace_all_uses_with(moved)
            results = [moved if result is value else result for result in results]
        nodes = list(branch)
        branch.remove(nodes)
        graph.insert_before(node, nodes)
        for old, new in zip(node.outputs, results, strict=True):
            substitute(old, new)
        remove(node)
        return True
