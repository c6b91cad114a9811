"""`eliminate_unused_initializer`: weights that nothing reads."""

import onnx_ir as ir

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs


@register("eliminate_unused_initializer")
class EliminateUnusedInitializer(Pass):
    """Removes initialisers that no node reads and that are no graph output; one that is an input too stays, as part of the signature."""

    def run(self, model: ir.Model) -> bool:
        changed = False
        for graph in traverse_graphs(model):
            for name, value in list(graph.initializers.items()):
                if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                    del graph.initializers[name]
                    changed = True
        return changed
