"""`fused_attention`: query, key and value of an attention come out of one product."""

import onnx_ir as ir

from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.fusion.merging import can_merge_columns, is_column_bias, merge_columns
from stoker.compiler.passes.matching.attention import Projection, find_attentions, projection_of
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("fused_attention")
class FusedAttention(Pass):
    """Replaces the three products that make query, key and value from one input by one, with their weights side by side, and a Split.

    Recognised by the attention around them. Biases are joined where all three follow their products directly; where reshapes stand in
    between (as tf2onnx writes it) they stay behind the Split. Tolerance is rounding: summation may be ordered otherwise for another width.
    """

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        changed = False
        for attention in list(find_attentions(model)):
            found = [projection_of(value) for value in attention.operands]
            projections = [each for each in found if each is not None]
            matmuls = [each.matmul for each in projections]
            if len(set(matmuls)) == 3 and len({each.graph for each in matmuls}) == 1 and can_merge_columns(matmuls):
                _fuse(editor, projections)
                changed = True
        return changed


def _fuse(editor: GraphEditor, projections: list[Projection]) -> None:
    matmuls = [each.matmul for each in projections]
    biases = [bias for each in projections if (bias := _column_bias(each)) is not None]
    if len(biases) == len(projections):
        merge_columns(editor, matmuls, biases, [each.output for each in projections])
    else:
        merge_columns(editor, matmuls, [], [each.outputs[0] for each in matmuls])


def _column_bias(projection: Projection) -> ir.Value | None:
    weights = static_shape(projection.matmul.inputs[1])
    return projection.bias if weights is not None and is_column_bias(projection.bias, weights[-1]) else None
