"""Rounds a layer's weight so that its output changes least over sample inputs, not each weight by itself: GPTQ.

Input channels are rounded one after the other; the error that rounding one makes in the output is made good, as far as the samples say that
channels go together, by changing those not yet rounded. What the samples say is H = X^T X over the rows X that the weight is multiplied by.

After Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022),
with its damping (1 % of the mean diagonal) and its blocks of columns, and with the fixed grid of an eight-bit float instead of one fitted
to each row.
"""

from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stoker.compiler.precision.float8 import encode, round_to_float8
from stoker.compiler.precision.representation import Float8Spec

#: Longest row of X whose H (float32) is formed: 256 MB.
MAX_CHANNELS: Final = 8192
_DAMPING: Final = 0.01
_BLOCK: Final = 128


def channels_of(node: ir.Node) -> int | None:
    """The length of the rows that the weight of `node` is multiplied by; None if the layer is not of a form that GPTQ rounds.

    These are MatMul and Gemm by a matrix, and ungrouped 2-D Conv with explicit pads.
    """
    weight = node.inputs[1]
    if weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    shape = tuple(int(size) for size in weight.shape.numpy())
    if node.op_type == "Conv":
        padding = node.attributes.get_string("auto_pad", "NOTSET")
        if len(shape) != 4 or node.attributes.get_int("group", 1) != 1 or padding not in ("NOTSET", "VALID"):
            return None
        channels = shape[1] * shape[2] * shape[3]
    elif len(shape) != 2:
        return None
    else:
        channels = shape[1] if _is_transposed(node, "transB") else shape[0]
    return channels if channels <= MAX_CHANNELS else None


def rows_of(node: ir.Node, activation: NDArray[Any]) -> NDArray[np.float32]:
    """X of one batch: `activation`, input 0 of `node`, as the rows that the weight is multiplied by; [rows, channels]."""
    values = activation.astype(np.float32, copy=False)
    if node.op_type == "Conv":
        return _patches(node, values)
    if _is_transposed(node, "transA"):
        values = values.T
    return values.reshape(-1, values.shape[-1])


def round_weight(node: ir.Node, weight: NDArray[Any], hessian: NDArray[np.float32], spec: Float8Spec) -> NDArray[np.uint8]:
    """Codes of `weight`, input 1 of `node`, in its shape.

    Args:
        node: Of a form that `channels_of` knows.
        weight: As the node has it.
        hessian: The sum of X^T X; [channels, channels].
        spec: The grid.
    """
    is_rows_first = node.op_type == "Conv" or _is_transposed(node, "transB")
    matrix = weight.reshape(len(weight), -1) if is_rows_first else weight.T
    rounded = _round_rows(matrix.astype(np.float32), hessian, spec)
    return encode((rounded if is_rows_first else rounded.T).reshape(weight.shape), spec.float8_format, spec.scale, nan_on_overflow=False)


def _is_transposed(node: ir.Node, attribute: str) -> bool:
    return node.op_type == "Gemm" and node.attributes.get_int(attribute, 0) != 0


def _round_rows(matrix: NDArray[np.float32], hessian: NDArray[np.float32], spec: Float8Spec) -> NDArray[np.float32]:
    """Values of the grid for `matrix` [outputs, channels]."""
    work, result = matrix.copy(), np.empty_like(matrix)
    damped = hessian.astype(np.float64)
    diagonal = np.diag(damped).copy()
    is_silent = diagonal == 0  # an input that was never anything but zero: its weight matters to nothing
    mean = float(np.mean(diagonal))
    damped[np.diag_indices_from(damped)] += np.where(is_silent, 1.0, 0.0) + _DAMPING * (mean if mean > 0 else 1.0)
    # The upper Cholesky factor of the inverse: row c says how the channels after c make good an error in c.
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    channels = matrix.shape[1]
    for first in range(0, channels, _BLOCK):
        last = min(first + _BLOCK, channels)
        errors = np.empty((len(matrix), last - first), np.float32)
        for channel in range(first, last):
            result[:, channel] = round_to_float8(work[:, channel], spec.float8_format, spec.scale)
            error = (work[:, channel] - result[:, channel]) / factor[channel, channel]
            work[:, channel:last] -= np.outer(error, factor[channel, channel:last])
            errors[:, channel - first] = error
        work[:, last:] -= errors @ factor[first:last, last:]
    return result


def _patches(node: ir.Node, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The receptive field of every output pixel of a 2-D convolution; [batch x pixels, channels x height x width]."""
    weight = node.inputs[1]
    assert weight is not None
    assert weight.shape is not None
    height, width = (int(size) for size in weight.shape.numpy()[2:])
    strides = node.attributes.get_ints("strides", (1, 1))
    dilations = node.attributes.get_ints("dilations", (1, 1))
    top, left, bottom, right = node.attributes.get_ints("pads", (0, 0, 0, 0))
    padded = np.pad(images, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = ((height - 1) * dilations[0] + 1, (width - 1) * dilations[1] + 1)
    windows = sliding_window_view(padded, spans, axis=(2, 3))[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(-1, images.shape[1] * height * width)
