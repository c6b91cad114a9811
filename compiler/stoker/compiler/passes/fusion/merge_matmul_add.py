"""`merge_matmul_add`: several fully connected layers become one."""

from collections.abc import Sequence

import onnx_ir as ir

from stoker.compiler.passes.edit import only_use, static_shape
from stoker.compiler.passes.fusion.merging import (
    Branch,
    can_merge_columns,
    find_branches,
    is_column_bias,
    merge_by_stacking,
    merge_columns,
    parse_names,
)
from stoker.compiler.passes.matching.edges import other_input
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

_OPTION = "merge_matmul_add"


@register("merge_matmul_add")
class MergeMatmulAdd(Pass):
    """Merges named pairs of MatMul and Add as `merge_matmul` merges products, with their biases side by side or stacked.

    Args:
        merge_matmul_add: MatMul and Add of the first pair, of the second and so on; a string may list them with commas.
    """

    def __init__(self, merge_matmul_add: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_matmul_add, option=_OPTION, each=2)

    def run(self, model: ir.Model) -> bool:
        branches = find_branches(model, self._names, option=_OPTION, op_types=["MatMul"], ends=["Add"])
        editor = GraphEditor(model)
        biases = [_bias(branch) for branch in branches]
        known = [bias for bias in biases if bias is not None]
        matmuls = [branch.begin for branch in branches]
        if len(known) == len(branches) and can_merge_columns(matmuls):
            merge_columns(editor, matmuls, known, [branch.end.outputs[0] for branch in branches])
        else:
            merge_by_stacking(editor, branches, option=_OPTION)
        return True


def _bias(branch: Branch) -> ir.Value | None:
    """The addend of the product, if that is one constant number a column and nothing else reads the product."""
    product = branch.begin.outputs[0]
    weights = static_shape(branch.begin.inputs[1])
    bias = other_input(branch.end, product)
    is_simple = only_use(product) is branch.end and weights is not None and is_column_bias(bias, weights[-1])
    return bias if is_simple else None
