"""`replace_clip_empty_inputs`: clipping on one side is a maximum or a minimum."""

import onnx_ir as ir

from stoker.compiler.passes.edit import input_at, rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("replace_clip_empty_inputs")
class ReplaceClipEmptyInputs(Pass):
    """Replaces Clip without an upper bound by Max, without a lower one by Min, and takes out one that has neither.

    Exact for finite numbers. A bound that is left out means the largest or lowest number of the type, so that Clip makes infinities finite,
    and these operators do not. Filling that number in would make a constant that `float_to_half` clips, with a warning.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Clip")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    value, low, high = node.inputs[0], input_at(node, 1), input_at(node, 2)
    if value is None or (low is not None and high is not None):
        return False
    writing = Rewriting(editor, node)
    bound = low if low is not None else high
    if bound is None:
        return writing.finish(value)
    if rank_of(bound) != 0:  # some exporters write one element in one dimension, which Max would make a dimension of the result
        return False
    return writing.finish(writing.op("Max" if low is not None else "Min", value, bound, shape=value.shape))
