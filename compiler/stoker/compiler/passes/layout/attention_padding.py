"""`attention_padding`: the dimensions that attention sums over are padded to what the matrix units work in."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.attention import find_attentions
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("attention_padding")
class AttentionPadding(Pass):
    """Pads the summed dimension of both products of every attention with zeros, to a multiple of what a tile multiplies at once.

    Query and key are padded along the head, probabilities (after the softmax) and value along the sequence, so that only zeros are added
    to each sum: exact but for the order of summation, and no result changes its shape.

    Args:
        multiple: Of the padded sizes. 16 are the input channels that the matrix unit of a tile takes at once in half precision (Poplar's
            convolution planner works in groups of 16).
    """

    def __init__(self, multiple: int = 16) -> None:
        if multiple < 1:
            raise OptionError(f"attention_padding: multiple must be at least 1, not {multiple}")
        self._multiple = multiple

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        changed = False
        for attention in list(find_attentions(model)):
            changed |= _pad_product(editor, attention.scores, self._multiple)
            changed |= _pad_product(editor, attention.context, self._multiple)
        return changed


def _pad_product(editor: GraphEditor, matmul: ir.Node, multiple: int) -> bool:
    shapes = [static_shape(value) for value in matmul.inputs]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return False
    missing = -(shapes[0] or (0,))[-1] % multiple
    if not missing:
        return False
    for index, axis in ((0, -1), (1, -2)):
        value, shape = matmul.inputs[index], list(shapes[index] or ())
        assert value is not None
        pads = np.zeros(2 * len(shape), np.int64)
        pads[len(shape) + len(shape) + axis] = missing
        shape[axis] += missing
        name = f"{matmul.name or 'MatMul'}/pad_{index}"
        amounts = editor.constant(matmul, pads, f"{name}/amounts")
        matmul.replace_input_with(index, editor.insert(matmul, "Pad", [value, amounts], name=name, dtype=value.dtype, shape=shape))
    return True
