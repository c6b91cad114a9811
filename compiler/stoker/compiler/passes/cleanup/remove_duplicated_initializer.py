"""`remove_duplicated_initializer`: equal weights of a model are held once."""

import onnx_ir as ir

from stoker.compiler.passes.equal_initializers import Known, merge_equal
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import subgraphs_of


@register("remove_duplicated_initializer")
class RemoveDuplicatedInitializer(Pass):
    """As `eliminate_duplicate_initializer`, and a sub-graph reads an equal initialiser of the graphs around it."""

    def run(self, model: ir.Model) -> bool:
        changed = _merge_inwards(model.graph, {})
        for function in model.functions.values():
            changed = _merge_inwards(function.graph, {}) or changed
        return changed


def _merge_inwards(graph: ir.Graph, outer: Known) -> bool:
    known = dict(outer)
    changed = merge_equal(graph, known)
    for node in graph:
        for inner in subgraphs_of(node):
            changed = _merge_inwards(inner, known) or changed
    return changed
