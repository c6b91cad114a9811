"""`merge_matmul`: several matrix products become one."""

from collections.abc import Sequence

import onnx_ir as ir

from stoker.compiler.passes.fusion.merging import can_merge_columns, find_branches, merge_by_stacking, merge_columns, parse_names
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

_OPTION = "merge_matmul"


@register("merge_matmul")
class MergeMatmul(Pass):
    """Merges named MatMul nodes: one large product uses the tiles better than several small ones.

    Products of one input get their weights side by side and a Split after them; products of different inputs of one shape, with weights of
    one shape, become one batched product. Tolerance is rounding: the order of summation may change with the size.

    Args:
        merge_matmul: Names of the nodes, at least two; a string may list them with commas.
    """

    def __init__(self, merge_matmul: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_matmul, option=_OPTION, each=1)

    def run(self, model: ir.Model) -> bool:
        doubled = [name for name in self._names for _ in range(2)]
        branches = find_branches(model, doubled, option=_OPTION, op_types=["MatMul"], ends=["MatMul"])
        editor = GraphEditor(model)
        nodes = [branch.begin for branch in branches]
        if can_merge_columns(nodes):
            merge_columns(editor, nodes, [], [node.outputs[0] for node in nodes])
        else:
            merge_by_stacking(editor, branches, option=_OPTION)
        return True
