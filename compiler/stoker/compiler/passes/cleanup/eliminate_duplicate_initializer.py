"""`eliminate_duplicate_initializer`: equal weights of a graph are held once."""

import onnx_ir as ir

from stoker.compiler.passes.equal_initializers import merge_equal
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs


@register("eliminate_duplicate_initializer")
class EliminateDuplicateInitializer(Pass):
    """Lets readers of initialisers with the same bytes read one of them; those that are inputs or outputs of a graph stay."""

    def run(self, model: ir.Model) -> bool:
        changed = False
        for graph in traverse_graphs(model):
            changed = merge_equal(graph, {}) or changed
        return changed
