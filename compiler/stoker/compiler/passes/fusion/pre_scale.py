"""`pre_scale`: attention's 1/sqrt(d) is applied to the query, in its weights where possible, and no longer to the scores."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of
from stoker.compiler.passes.matching.attention import Attention, Projection, find_attentions, is_scaling, projection_of
from stoker.compiler.passes.matching.edges import is_private, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("pre_scale")
class PreScale(Pass):
    """Moves the constant factor between an attention's first product and its mask to the query: into the weights and bias of its projection
    where these are constants that only the query needs, else as a Mul on the query.

    The query is smaller than the scores, and in FP16 smaller scores overflow later. Tolerance is rounding. A factor behind the mask stays,
    since it scales the mask as well.
    """

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        return any([_move(editor, attention) for attention in list(find_attentions(model))])  # noqa: C419 - all of them


def _move(editor: GraphEditor, attention: Attention) -> bool:
    query = attention.scores.inputs[0]
    factor = 1.0
    scalings: list[ir.Node] = []
    for node in attention.between:
        number = is_scaling(node)
        if number is None:
            break
        factor *= number
        scalings.append(node)
    if query is None or not scalings or query.dtype is None:
        return False
    if not _scale_projection(editor, projection_of(query), factor):
        amount = editor.constant(attention.scores, np.asarray(factor, query.dtype.numpy()), f"{attention.scores.name or 'query'}/scale")
        scaled = editor.insert(attention.scores, "Mul", [query, amount], name=f"{attention.scores.name or 'query'}/pre_scale", like=query)
        attention.scores.replace_input_with(0, scaled)
    for node in scalings:
        parts = split_constant(node)
        assert parts is not None
        editor.bypass(node.outputs[0], parts[0])
        editor.remove_dead(node)
    return True


def _scale_projection(editor: GraphEditor, projection: Projection | None, factor: float) -> bool:
    """Multiplies weights and bias, if only the query is made from them."""
    if projection is None or not all(is_private(value) for value in projection.path):
        return False
    weights, bias = projection.matmul.inputs[1], projection.bias
    if weights is None or not is_private(weights) or (bias is not None and not is_private(bias)):
        return False
    _scale_constant(editor, projection.matmul, weights, factor)
    if bias is not None and projection.add is not None:
        _scale_constant(editor, projection.add, bias, factor)
    return True


def _scale_constant(editor: GraphEditor, node: ir.Node, value: ir.Value, factor: float) -> None:
    array = constant_of(value)
    assert array is not None
    scaled = editor.constant(node, (array.astype(np.float64) * factor).astype(array.dtype), f"{value.name}/scaled")
    value.replace_all_uses_with(scaled)
    editor.drop_unused_initializers([value])
    editor.remove_dead(value.producer())
