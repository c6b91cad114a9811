"""Attention: one product for query, key and value; rotary embeddings; the scale applied to the query."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_ints, constant_of, input_at, is_op, only_use, producer_of, static_shape
from stoker.compiler.passes.fusion.merging import can_merge_columns, is_column_bias, merge_columns
from stoker.compiler.passes.matching.attention import Attention, Projection, find_attentions, is_scaling, projection_of
from stoker.compiler.passes.matching.edges import int_attribute, is_private, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import rewrite_pass
from stoker.compiler.passes.registry import model_pass


@model_pass()
def fused_attention(model: ir.Model) -> bool:
    """Merges the three products that compute query, key and value from one input into one product with concatenated weights, and a Split.

    The pass finds them by the attention around them. Biases are merged if all three directly follow their products; if reshapes stand
    between (as tf2onnx writes them), the biases stay after the Split. Tolerance is rounding: the summation order may depend on the width.
    """
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


@rewrite_pass("Concat")
def matmul_rotary_embedding(editor: GraphEditor, concat: ir.Node) -> bool:
    """Replaces the rotation in x * cos + rotate(x) * sin by a product of x with a constant matrix of 1 and -1.

    Two forms of rotate are known: halves, (x1, x2) to (-x2, x1), by slices or a Split (Hugging Face's rotate_half); and neighbours, by
    slices with step 2, put side by side and reshaped (RoFormer). Slices and concatenations rearrange memory between tiles, a product with
    a small matrix does the same where the data lies. Exact for finite values.
    """
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
    """Returns R of shape [size, size] where x @ R is (-x2, x1) for the halves x1, x2 of x."""
    half = size // 2
    matrix = np.zeros((size, size), np.float32)
    matrix[np.arange(half) + half, np.arange(half)] = -1
    matrix[np.arange(half), np.arange(half) + half] = 1
    return matrix


def neighbour_rotation(size: int) -> NDArray[np.float32]:
    """Returns R of shape [size, size] where x @ R is (-x[1], x[0], -x[3], x[2], ...)."""
    even = np.arange(0, size, 2)
    matrix = np.zeros((size, size), np.float32)
    matrix[even + 1, even] = -1
    matrix[even, even + 1] = 1
    return matrix


def _halves(concat: ir.Node) -> ir.Value | None:
    """Returns x where `concat` is (-x2, x1), along the last dimension."""
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
    """Returns x where `concat` puts (-x[1], x[3], ...) beside (x[0], x[2], ...) along a new last dimension."""
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
    """Returns the value of which `first` and `second` are slices, with the bounds that `wanted` returns for its last size."""
    slices = [producer_of(value, "Slice") for value in (first, second)]
    if slices[0] is None or slices[1] is None or slices[0].inputs[0] is not slices[1].inputs[0]:
        return None
    x = slices[0].inputs[0]
    shape = static_shape(x)
    if shape is None or shape[-1] % 2:
        return None
    return x if [_bounds(node, shape) for node in slices if node is not None] == list(wanted(shape[-1])) else None


def _bounds(node: ir.Node, shape: tuple[int, ...]) -> list[int] | None:
    """Returns [start, end, step] of a Slice that cuts only the last dimension."""
    starts, ends, axes, steps = (constant_ints(input_at(node, index)) for index in range(1, 5))
    if starts is None or ends is None or axes is None or len(axes) != 1 or axes[0] % len(shape) != len(shape) - 1:
        return None
    size = shape[-1]
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (starts[0], ends[0]))
    return [start, end, steps[0] if steps else 1]


def _is_last_axis(node: ir.Node, value: ir.Value) -> bool:
    axis, shape = int_attribute(node, "axis", 0), static_shape(value)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


@model_pass()
def pre_scale(model: ir.Model) -> bool:
    """Moves the constant factor between an attention's first product and its mask to the query: into the weights and bias of its projection
    where these are constants that only the query needs, else as a Mul on the query.

    The query is smaller than the scores, and in FP16 smaller scores overflow later. Tolerance is rounding. A factor behind the mask stays,
    since it scales the mask as well.
    """
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
    """Multiplies weights and bias of the projection, if only the query uses them."""
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
