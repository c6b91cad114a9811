"""`sort_graph`: nodes after what they read."""

import onnx_ir as ir

from stoker.compiler.errors import PassError
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs


@register("sort_graph")
class SortGraph(Pass):
    """Puts nodes in topological order; those that do not depend on each other stay as they stood."""

    def run(self, model: ir.Model) -> bool:
        before = [node for graph in traverse_graphs(model) for node in graph]
        try:
            model.graph.sort()
            for function in model.functions.values():
                function.sort()
        except ValueError as error:
            raise PassError(f"graph '{model.graph.name}' goes round in a circle: {error}") from error
        return before != [node for graph in traverse_graphs(model) for node in graph]
