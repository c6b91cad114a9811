"""The pass `layer_norm_pattern` fuses layer normalisation, as exporters write it, into one node."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_ints, constant_of, input_at, is_op, only_use, producer_of, rank_of, static_shape
from stoker.compiler.passes.matching.edges import int_attribute, is_constant, other_input, power_of, reader_of, scalar_of, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import rewrite_pass

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True, slots=True)
class _Norm:
    """A matched normalisation (x - mean) / sqrt(variance + epsilon) * scale + bias over dimensions `axis` and after; `last` computes it."""

    x: ir.Value
    axis: int
    epsilon: float
    last: ir.Node
    scale: ir.Value | None = None
    bias: ir.Value | None = None


@rewrite_pass("Sqrt")
def layer_norm_pattern(editor: GraphEditor, sqrt: ir.Node) -> bool:
    """Replaces (x - mean) / sqrt(variance + eps) * scale + bias by one LayerNormalization node.

    Upstream this makes a GroupNormalization of one group, because PopART has no other; since opset 17 ONNX has LayerNormalization, which
    says the same, runs on ONNX Runtime and needs no reshaping around it, so that is what this pass makes.

    The square may be Pow or Mul, the quotient Div, or Mul by Reciprocal, the deviation computed once or twice, or the whole multiplied
    out as TensorFlow does: x * m + (bias - mean * m) with m = scale / deviation; means over the last or the last several dimensions. Scale
    and bias are constants of the normalised shape (what can be broadcast to it is), or left out (scale 1, no bias). FP32 and FP16 only;
    FP16 also with the statistics in FP32 between two Casts, as LayerNormalization computes them. Tolerance is rounding.
    """
    found = _norm_around(sqrt)
    if found is None or found.x.dtype not in _FLOATS:
        return False
    shape = static_shape(found.x)
    if shape is None or not all(_fits(parameter, shape, found.axis) for parameter in (found.scale, found.bias)):
        return False
    last, sizes, name = found.last, shape[found.axis :], f"{found.last.name or sqrt.name or 'norm'}/LayerNormalization"
    dtype = found.x.dtype.numpy()
    inputs = [found.x, _shaped(editor, last, found.scale, sizes, np.ones((), dtype), f"{name}/scale")]
    if found.bias is not None:
        inputs.append(_shaped(editor, last, found.bias, sizes, np.zeros((), dtype), f"{name}/bias"))
    attributes = {"axis": found.axis - len(shape), "epsilon": found.epsilon}
    fused = editor.insert(last, "LayerNormalization", inputs, attributes=attributes, name=name, like=found.x)
    editor.replace(last.outputs[0], fused)
    editor.remove_dead(last)
    return True


def _norm_around(sqrt: ir.Node) -> _Norm | None:
    """Returns the normalisation whose standard deviation `sqrt` computes."""
    add = producer_of(sqrt.inputs[0], "Add")
    parts = None if add is None else split_constant(add)
    epsilon = None if parts is None else scalar_of(parts[1])
    if add is None or parts is None or epsilon is None:
        return None
    variance = producer_of(parts[0], "ReduceMean")
    if variance is None or only_use(variance.outputs[0]) is not add or only_use(add.outputs[0]) is not sqrt:
        return None
    deviation = _squared_deviation(variance)
    divisor = only_use(sqrt.outputs[0])
    if deviation is None or divisor is None:
        return None
    x, axis = deviation
    if is_op(divisor, "Div") and divisor.inputs[1] is sqrt.outputs[0] and _deviation(divisor.inputs[0]) == deviation:
        return _with_parameters(_Norm(x, axis, epsilon, divisor))
    if not is_op(divisor, "Reciprocal"):
        return None
    product = only_use(divisor.outputs[0])
    if product is None or not is_op(product, "Mul"):
        return None
    factor = other_input(product, divisor.outputs[0])
    if _deviation(factor) == deviation:
        return _with_parameters(_Norm(x, axis, epsilon, product))
    return _multiplied_out(_Norm(x, axis, epsilon, product, scale=factor)) if is_constant(factor) else None


def _with_parameters(norm: _Norm) -> _Norm:
    """Returns `norm` with the constant scale and bias that follow it, if any."""
    norm = _without_casts(norm)
    scale = bias = None
    last = norm.last
    mul = reader_of(last.outputs[0], "Mul")
    if mul is not None and (scale := _parameter(mul, norm)) is not None:
        last = mul
    add = reader_of(last.outputs[0], "Add")
    if add is not None and (bias := _parameter(add, norm)) is not None:
        last = add
    return replace(norm, last=last, scale=scale, bias=bias)


def _without_casts(norm: _Norm) -> _Norm:
    """Returns `norm` from the FLOAT16 value before it to the one after it, if it is computed in FLOAT between two Casts."""
    before, after = producer_of(norm.x, "Cast"), reader_of(norm.last.outputs[0], "Cast")
    if before is None or after is None or before.inputs[0] is None:
        return norm
    narrow = ir.DataType.FLOAT16
    is_widened = norm.x.dtype is ir.DataType.FLOAT and before.inputs[0].dtype is narrow and after.outputs[0].dtype is narrow
    return replace(norm, x=before.inputs[0], last=after) if is_widened else norm


def _multiplied_out(norm: _Norm) -> _Norm | None:
    """Returns `norm`, whose `last` computes m = scale / deviation, if it continues as x * m + (bias - mean * m)."""
    slope = norm.last.outputs[0]
    users = [use.node for use in slope.uses()]
    if len(users) != 2 or slope.is_graph_output():
        return None
    for scaled, shifted in (users, reversed(users)):
        sub, add = reader_of(shifted.outputs[0], "Sub"), reader_of(scaled.outputs[0], "Add")
        mean = producer_of(other_input(shifted, slope), "ReduceMean")
        if sub is None or add is None or mean is None or not (is_op(scaled, "Mul") and is_op(shifted, "Mul")):
            continue
        is_mean = mean.inputs[0] is norm.x and _trailing_axis(mean, norm.x) == norm.axis
        is_whole = other_input(add, scaled.outputs[0]) is sub.outputs[0] and only_use(sub.outputs[0]) is add
        if other_input(scaled, slope) is norm.x and is_mean and is_whole and is_constant(sub.inputs[0]):
            return replace(norm, last=add, bias=sub.inputs[0])
    return None


def _squared_deviation(variance: ir.Node) -> tuple[ir.Value, int] | None:
    """Returns (x, axis) where `variance` is the mean of (x - mean of x)^2, both over the dimensions from `axis` on."""
    square = variance.inputs[0]
    power = None if square is None else power_of(square)
    if power is None or power[0] != 2:
        return None
    found = _deviation(power[1])
    return found if found is not None and _trailing_axis(variance, found[0]) == found[1] else None


def _deviation(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Returns (x, axis) where `value` is x minus its mean over the dimensions from `axis` on."""
    sub = producer_of(value, "Sub")
    mean = None if sub is None else producer_of(sub.inputs[1], "ReduceMean")
    if sub is None or mean is None or sub.inputs[0] is None or mean.inputs[0] is not sub.inputs[0]:
        return None
    axis = _trailing_axis(mean, sub.inputs[0])
    return None if axis is None else (sub.inputs[0], axis)


def _trailing_axis(reduce: ir.Node, x: ir.Value) -> int | None:
    """Returns the first reduced dimension, counted from the front, if the reduced dimensions are the last of `x` and are kept with
    size 1.
    """
    rank = rank_of(x)
    attribute = reduce.attributes.get("axes")
    axes = list(attribute.as_ints()) if attribute is not None else constant_ints(input_at(reduce, 1))
    if rank is None or not axes or int_attribute(reduce, "keepdims", 1) != 1:
        return None
    positions = sorted(axis % rank for axis in axes)
    return positions[0] if positions == list(range(rank - len(positions), rank)) else None


def _parameter(node: ir.Node, norm: _Norm) -> ir.Value | None:
    """Returns the constant input of `node`, if it varies along the normalised dimensions only."""
    parts, shape = split_constant(node), static_shape(norm.x)
    return parts[1] if parts is not None and shape is not None and _fits(parts[1], shape, norm.axis) else None


def _fits(parameter: ir.Value | None, shape: tuple[int, ...], axis: int) -> bool:
    """Returns whether `parameter` is omitted, or can be broadcast to dimensions `axis` and after and varies only there."""
    if parameter is None:
        return True
    given = static_shape(parameter)
    if given is None or len(given) > len(shape):
        return False
    aligned = (1,) * (len(shape) - len(given)) + given
    return all(size == 1 for size in aligned[:axis]) and all(size in (1, shape[axis + i]) for i, size in enumerate(aligned[axis:]))


def _shaped(
    editor: GraphEditor, near: ir.Node, parameter: ir.Value | None, sizes: tuple[int, ...], default: NDArray[Any], name: str
) -> ir.Value:
    """Returns `parameter` if it has the normalised shape, else a constant broadcast to that shape."""
    array = constant_of(parameter)
    if parameter is not None and array is not None and array.shape == sizes:
        return parameter
    array = default if array is None else array.reshape(array.shape[max(array.ndim - len(sizes), 0) :])
    return editor.constant(near, np.broadcast_to(array, sizes), name)
