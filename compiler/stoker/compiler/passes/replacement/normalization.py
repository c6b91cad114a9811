"""Passes that replace normalisations by a factor and an offset, or by layer normalisation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_ints, constant_of, input_at, is_op, producer_of, rank_of, static_shape
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute, power_of, reader_of, scalar_of, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass


@rewrite_pass("BatchNormalization")
def replace_bn_with_mul_add(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces BatchNormalization in inference mode, with constant parameters, by Mul and Add of one number a channel.

    For those that `fuse_bn_into_conv` and `fuse_bn_into_gemm` leave. The numbers are computed in double precision; tolerance is rounding.
    """
    x, rank = node.inputs[0], rank_of(node.inputs[0])
    if x is None or x.dtype is None or rank is None or rank < 2:
        return False
    if int_attribute(node, "training_mode", 0) or any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    parameters = [array.astype(np.float64) for value in node.inputs[1:5] if (array := constant_of(value)) is not None]
    if len(parameters) < 4:
        return False
    scale, offset, mean, variance = parameters
    factor = scale / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    sizes, dtype = (-1, *(1,) * (rank - 2)), x.dtype.numpy()
    writing = Rewriting(editor, node)
    scaled = writing.op("Mul", x, writing.array(factor.reshape(sizes).astype(dtype), "factor"), shape=x.shape)
    shift = (offset - mean * factor).reshape(sizes).astype(dtype)
    return writing.finish(writing.op("Add", scaled, writing.array(shift, "shift"), shape=x.shape))


_ARRANGING = ("Reshape", "Identity")


@dataclass(frozen=True, slots=True)
class _Norm:
    """A normalisation over all elements of a sample: `result` is (x - mean) / deviation * scale + bias, where x may have another shape."""

    x: ir.Value
    result: ir.Value
    epsilon: float
    scale: NDArray[Any]
    bias: NDArray[Any]


@rewrite_pass("GroupNormalization", "InstanceNormalization", "Div")
def replace_groupnorm_with_fast_norm(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces a group normalisation of one group, in FP16 and of known shape, by LayerNormalization over all dimensions but the first.

    Upstream's FastNorm is an operator of its own; layer normalisation says the same. A group normalisation is found as a node, as PyTorch
    exports it (InstanceNormalization of one channel between reshapes, then a factor and an offset for each channel), and as ONNX's own
    definition of GroupNormalization, which is what opset 21's becomes at the opset of passes. Tolerance is rounding in FP16; the last form
    subtracts two large means, and is less exact than what takes its place.
    """
    norm = {"GroupNormalization": _node, "InstanceNormalization": _exported, "Div": _defined}[node.op_type](node)
    shape = None if norm is None else static_shape(norm.x)
    if norm is None or shape is None or norm.x.dtype is not ir.DataType.FLOAT16:
        return False
    value, scale = _followed(norm.result, "Mul", shape)
    value, bias = _followed(value, "Add", shape)
    scale, bias = norm.scale * scale, norm.bias * scale + bias
    while static_shape(value) != shape:
        following = reader_of(value, *_ARRANGING)
        if following is None:
            return False
        value = following.outputs[0]
    last, sizes = value.producer(), (-1, *(1,) * (len(shape) - 2))
    if last is None:
        return False
    writing = Rewriting(editor, last)
    parameters = [
        writing.array(np.broadcast_to(each, shape[1]).reshape(sizes).astype(np.float16), role)
        for each, role in ((scale, "scale"), (bias, "bias"))
    ]
    return writing.finish(writing.op("LayerNormalization", norm.x, *parameters, shape=shape, axis=1, epsilon=norm.epsilon))


def _node(node: ir.Node) -> _Norm | None:
    """Matches GroupNormalization: up to opset 20 with a scale and a bias per group, later per channel."""
    x, scale, bias = node.inputs[0], constant_of(node.inputs[1]), constant_of(node.inputs[2])
    if x is None or scale is None or bias is None or int_attribute(node, "num_groups", 0) != 1:
        return None
    return _Norm(x, node.outputs[0], float_attribute(node, "epsilon", 1e-5), scale.astype(np.float64), bias.astype(np.float64))


def _exported(node: ir.Node) -> _Norm | None:
    """Matches InstanceNormalization of samples that were reshaped to one channel."""
    x, scale, bias = _sample(node.inputs[0]), scalar_of(node.inputs[1]), scalar_of(node.inputs[2])
    if x is None or scale is None or bias is None:
        return None
    return _Norm(x, node.outputs[0], float_attribute(node, "epsilon", 1e-5), np.array(scale), np.array(bias))


def _defined(div: ir.Node) -> _Norm | None:
    """Matches (x - mean) / sqrt(mean of squares - square of mean + epsilon) of samples that were reshaped to one channel."""
    sub, sqrt = producer_of(div.inputs[0], "Sub"), producer_of(div.inputs[1], "Sqrt")
    add = None if sqrt is None else producer_of(sqrt.inputs[0], "Add")
    parts = None if add is None else split_constant(add)
    variance = None if parts is None else producer_of(parts[0], "Sub")
    if sub is None or parts is None or variance is None:
        return None
    rows, mean, epsilon = sub.inputs[0], sub.inputs[1], scalar_of(parts[1])
    squares = producer_of(variance.inputs[0], "ReduceMean")
    if rows is None or mean is None or epsilon is None or squares is None or not _is_mean_of(producer_of(mean, "ReduceMean"), rows):
        return None
    square, squared_mean = squares.inputs[0], variance.inputs[1]
    if square is None or squared_mean is None or not _is_mean_of(squares, square):
        return None
    x = _sample(rows)
    if x is None or power_of(square) != (2, rows) or power_of(squared_mean) != (2, mean):
        return None
    return _Norm(x, div.outputs[0], epsilon, np.array(1.0), np.array(0.0))


def _is_mean_of(mean: ir.Node | None, rows: ir.Value) -> bool:
    """Whether `mean` reduces the last of three dimensions of `rows`, with keepdims."""
    if mean is None or mean.inputs[0] is not rows or int_attribute(mean, "keepdims", 1) != 1:
        return False
    return constant_ints(input_at(mean, 1)) in ([2], [-1])


def _sample(rows: ir.Value | None) -> ir.Value | None:
    """The value that was reshaped to `rows`, of shape [samples, 1, elements], if it has channels: [samples, channels, ...]."""
    shape, value = static_shape(rows), rows
    while (maker := producer_of(value, *_ARRANGING)) is not None:
        value = maker.inputs[0]
    source = static_shape(value)
    if shape is None or len(shape) != 3 or shape[1] != 1 or source is None or len(source) < 2 or source[0] != shape[0]:
        return None
    return value


def _followed(value: ir.Value, op_type: str, shape: tuple[int, ...]) -> tuple[ir.Value, NDArray[np.float64]]:
    """Where `value` goes on through a Mul or Add by constants of the channels, and those; else `value` and what changes nothing."""
    current: ir.Value = value
    while (node := reader_of(current, *_ARRANGING)) is not None:
        current = node.outputs[0]
    node, given = reader_of(current, op_type), static_shape(current)
    parts = split_constant(node) if is_op(node, op_type) and node is not None else None
    array = None if parts is None else constant_of(parts[1])
    neutral = np.array(1.0 if op_type == "Mul" else 0.0)
    if node is None or array is None or given is None or array.ndim > len(given) or given[:2] != shape[:2]:
        return value, neutral
    aligned = (1,) * (len(given) - array.ndim) + array.shape
    if aligned[1] not in (1, shape[1]) or array.size != aligned[1]:
        return value, neutral
    return node.outputs[0], array.reshape(-1).astype(np.float64)
