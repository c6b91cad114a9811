"""`merge_moe`: the experts of a mixture are computed as one."""

from collections.abc import Sequence

import onnx_ir as ir

from stoker.compiler.passes.fusion.merging import find_branches, merge_by_stacking, parse_names
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

_OPTION = "merge_moe"


@register("merge_moe")
class MergeMoE(Pass):
    """Merges named experts of equal structure: their weights are stacked, and each operator runs once for all of them.

    An expert reaches from its first node to its last; in between stand products with constant weights, element by element arithmetic and
    activations. Experts may read one input or several of one shape. Tolerance is rounding.

    Args:
        merge_moe: First and last node of the first expert, of the second and so on; a string may list them with commas.
    """

    def __init__(self, merge_moe: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_moe, option=_OPTION, each=2)

    def run(self, model: ir.Model) -> bool:
        branches = find_branches(model, self._names, option=_OPTION)
        merge_by_stacking(GraphEditor(model), branches, option=_OPTION)
        return True
