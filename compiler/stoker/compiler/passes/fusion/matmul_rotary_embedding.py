"""`matmul_rotary_embedding`: turning pairs of elements by slices becomes a product with a constant matrix."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_ints, input_at, is_op, only_use, producer_of, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("matmul_rotary_embedding")
class MatmulRotaryEmbedding(Pass):
    """Replaces the rotation in x * cos + rotate(x) * sin by a product of x with a constant matrix of 1 and -1.

    Two forms of rotate are known: halves, (x1, x2) to (-x2, x1), by slices or a Split (Hugging Face's rotate_half); and neighbours, by
    slices with step 2, put side by side and reshaped (RoFormer). Slices and concatenations rearrange memory between tiles, a product with
    a small matrix does the same where the data lies. Exact for finite values.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Concat")


def _replace(editor: GraphEditor, concat: ir.Node) -> bool:
    last, found = concat, _halves(concat)
    if found is None:
        reshape = only_use(concat.outputs[0])
        found = _neighbours(concat)
        if found is None or reshape is None or not is_op(reshape, "Reshape") or static_shape(reshape.outputs[0]) != static_shape(found):
            return False
        last = reshape
    size = (static_shape(found) or (0,))[-1]
    if found.dtype is None or not any(is_op(use.node, "Mul") for use in last.outputs[0].uses()):
        return False
    matrix = half_rotation(size) if last is concat else neighbour_rotation(size)
    name = f"{last.name or 'rotate'}/rotary"
    turning = editor.constant(last, matrix.astype(found.dtype.numpy()), f"{name}/matrix")
    editor.replace(last.outputs[0], editor.insert(last, "MatMul", [found, turning], name=name, like=found))
    editor.remove_dead(last)
    return True


def half_rotation(size: int) -> NDArray[np.float32]:
    """R of shape [size, size] where x @ R is (-x2, x1) for the halves x1, x2 of x."""
    half = size // 2
    matrix = np.zeros((size, size), np.float32)
    matrix[np.arange(half) + half, np.arange(half)] = -1
    matrix[np.arange(half), np.arange(half) + half] = 1
    return matrix


def neighbour_rotation(size: int) -> NDArray[np.float32]:
    """R of shape [size, size] where x @ R is (-x[1], x[0], -x[3], x[2], ...)."""
    even = np.arange(0, size, 2)
    matrix = np.zeros((size, size), np.float32)
    matrix[even + 1, even] = -1
    matrix[even, even + 1] = 1
    return matrix


def _halves(concat: ir.Node) -> ir.Value | None:
    """X where `concat` is (-x2, x1), along the last dimension."""
    if len(concat.inputs) != 2 or not _is_last_axis(concat, concat.outputs[0]):
        return None
    neg, first = producer_of(concat.inputs[0], "Neg"), concat.inputs[1]
    second = None if neg is None else neg.inputs[0]
    if first is None or second is None:
        return None
    split = producer_of(first, "Split")
    if split is not None and split is second.producer() and len(split.outputs) == 2:
        x = split.inputs[0]
        shape, part = static_shape(x), static_shape(first)
        is_half = shape is not None and part is not None and part[-1] * 2 == shape[-1] and _is_last_axis(split, first)
        return x if is_half and list(split.outputs) == [first, second] else None
    return _common_source(first, second, lambda size: ([0, size // 2, 1], [size // 2, size, 1]))


def _neighbours(concat: ir.Node) -> ir.Value | None:
    """X where `concat` puts (-x[1], x[3], ...) beside (x[0], x[2], ...) along a new last dimension."""
    if len(concat.inputs) != 2:
        return None
    right, left = (producer_of(value, "Unsqueeze") for value in concat.inputs)
    if right is None or left is None or not _is_last_axis(concat, concat.outputs[0]):
        return None
    rank = len(static_shape(left.inputs[0]) or ())
    if any((constant_ints(node.inputs[1]) or [0])[0] not in (-1, rank) for node in (right, left)):
        return None
    neg, even = producer_of(right.inputs[0], "Neg"), left.inputs[0]
    odd = None if neg is None else neg.inputs[0]
    return None if even is None or odd is None else _common_source(even, odd, lambda size: ([0, size, 2], [1, size, 2]))


def _common_source(first: ir.Value, second: ir.Value, wanted: Any) -> ir.Value | None:
    """The value that `first` and `second` are slices of, with the bounds that `wanted` gives for its last size."""
    slices = [producer_of(value, "Slice") for value in (first, second)]
    if slices[0] is None or slices[1] is None or slices[0].inputs[0] is not slices[1].inputs[0]:
        return None
    x = slices[0].inputs[0]
    shape = static_shape(x)
    if shape is None or shape[-1] % 2:
        return None
    return x if [_bounds(node, shape) for node in slices if node is not None] == list(wanted(shape[-1])) else None


def _bounds(node: ir.Node, shape: tuple[int, ...]) -> list[int] | None:
    """[start, end, step] of a Slice of the last dimension only."""
    starts, ends, axes, steps = (constant_ints(input_at(node, index)) for index in range(1, 5))
    if starts is None or ends is None or axes is None or len(axes) != 1 or axes[0] % len(shape) != len(shape) - 1:
        return None
    size = shape[-1]
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (starts[0], ends[0]))
    return [start, end, steps[0] if steps else 1]


def _is_last_axis(node: ir.Node, value: ir.Value) -> bool:
    axis, shape = int_attribute(node, "axis", 0), static_shape(value)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)
