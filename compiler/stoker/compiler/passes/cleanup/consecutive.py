"""Passes that merge consecutive nodes into one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import (
    bypass,
    constant_ints,
    constant_of,
    input_at,
    is_op,
    new_constant,
    only_use,
    producer_of,
    rank_of,
    remove_if_unused,
    replace_node,
    substitute,
)
from stoker.compiler.passes.registry import node_pass


@node_pass("Add", "Sub", "Mul", "Div")
def fuse_consecutive_arithmetic(node: ir.Node) -> bool:
    """Merges two consecutive additions (or subtractions) or multiplications (or divisions) of constants into one node.

    Floating-point results may differ in the last bit, because there is one rounding less. The nodes stay if they divide integers, if the
    combined constant would overflow, underflow or exceed both constants, or if another node reads the intermediate value.
    """
    second = _step(node)
    inner = second.value.producer() if second is not None else None
    if second is None or inner is None or only_use(second.value) is not node:
        return False
    first = _step(inner)
    if first is None or first.is_sum != second.is_sum:
        return False
    combined = _combine(first, second)
    if combined is None:
        return False
    constant = new_constant(node, combined, "constant")
    replace_node(node, "Add" if first.is_sum else "Mul", [first.value, constant])
    graph = inner.graph
    assert graph is not None, "the inner node was only read by the replaced one"
    graph.remove(inner, safe=True)
    return True


@dataclass(frozen=True, slots=True)
class _Step:
    """x + constant, or x * constant; `is_inverse` for x - constant and x / constant."""

    value: ir.Value
    constant: NDArray[Any]
    is_sum: bool
    is_inverse: bool


def _step(node: ir.Node) -> _Step | None:
    if not is_op(node, "Add", "Sub", "Mul", "Div"):
        return None
    is_sum, is_inverse = node.op_type in ("Add", "Sub"), node.op_type in ("Sub", "Div")
    left, right = node.inputs
    for value, other in ((left, right), (right, left)):
        constant = constant_of(other)
        if value is not None and constant is not None and constant_of(value) is None:
            if node.op_type == "Div" and constant.dtype.kind in "iu":
                return None
            return _Step(value, constant, is_sum, is_inverse)
        if is_inverse:
            break
    return None


def _combine(first: _Step, second: _Step) -> NDArray[Any] | None:
    """Returns the combined constant; None if the dtypes differ, it leaves the normal range, or it is larger than both constants."""
    kind = first.constant.dtype
    if kind != second.constant.dtype:
        return None
    exact = np.dtype(np.float64) if kind.kind not in "iu" else kind
    with np.errstate(all="ignore"):
        one, two = first.constant.astype(exact), second.constant.astype(exact)
        if first.is_sum:
            result = (-one if first.is_inverse else one) + (-two if second.is_inverse else two)
        else:
            result = (1 / one if first.is_inverse else one) * (1 / two if second.is_inverse else two)
        rounded = np.asarray(result).astype(kind)
    if rounded.size > max(first.constant.size, second.constant.size):
        return None
    if exact == np.float64:
        wide = rounded.astype(np.float64)
        if not np.isfinite(wide).all() or (not first.is_sum and (np.abs(wide) < _smallest_normal(kind)).any()):
            return None
    return rounded


def _smallest_normal(kind: np.dtype[Any]) -> float:
    """Returns the smallest normal number; a smaller product loses digits that the two steps keep."""
    return float(_float_form(kind).smallest_normal)


# the function of ml_dtypes, because it supports bfloat16 too; it has no type stubs
_float_form: Callable[[Any], Any] = ml_dtypes.finfo


@node_pass("Cast")
def fuse_consecutive_cast(node: ir.Node) -> bool:
    """Casts directly from the first type to the last if the intermediate type holds every value of the first.

    float -> float16 -> float stays, because its rounding is part of the result. The first Cast stays if other nodes read it.
    """
    first = producer_of(node.inputs[0], "Cast")
    source = first.inputs[0] if first is not None else None
    if first is None or source is None or source.dtype is None:
        return False
    between, wanted = ir.DataType(first.attributes.get_int("to", 0)), node.attributes.get_int("to", 0)
    if not holds_every_value(between, source.dtype):
        return False
    if wanted == source.dtype:
        changed = bypass(node, source)
    else:
        node.replace_input_with(0, source)
        changed = True
    remove_if_unused(first)
    return changed


def holds_every_value(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Returns whether casting from `narrow` to `wide` keeps every value."""
    if wide == narrow:
        return True
    if not (_is_number(wide) and _is_number(narrow)):
        return False
    if wide == ir.DataType.BOOL:
        return False
    if narrow == ir.DataType.BOOL:
        return True
    if narrow.is_integer():
        small: Any = _int_form(narrow.numpy())
        if wide.is_integer():
            large = _int_form(wide.numpy())
            return bool(large.min <= small.min and small.max <= large.max)
        form = _float_form(wide.numpy())
        return bool(max(abs(int(small.min)), int(small.max)) <= 2 ** (form.nmant + 1) <= 2 * float(form.max))
    if wide.is_integer():
        return False
    if narrow not in _PLAIN_FLOATS and wide not in _PLAIN_FLOATS:
        return False  # between 8-bit formats: some have no infinities, others no negative zero
    less, more = _float_form(narrow.numpy()), _float_form(wide.numpy())
    return bool(
        wide in _PLAIN_FLOATS
        and less.nmant <= more.nmant
        and float(less.max) <= float(more.max)
        and float(less.smallest_subnormal) >= float(more.smallest_subnormal)
    )


# the functions of ml_dtypes, because they support numpy's and the small types; they have no type stubs
_int_form: Callable[[Any], Any] = ml_dtypes.iinfo

_PLAIN_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


def _is_number(kind: ir.DataType) -> bool:
    return kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and np.dtype(kind.numpy()).kind != "c"


_KEEP_ORDER = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@node_pass("Reshape")
def fuse_consecutive_reshape(node: ir.Node) -> bool:
    """Merges a Reshape with a preceding Reshape, Flatten, Squeeze or Unsqueeze; the first node stays if others read it.

    A 0 in the target copies a dimension of the intermediate value. It is replaced by the dimension's size; if the size is unknown, both
    nodes stay.
    """
    first = producer_of(node.inputs[0], *_KEEP_ORDER)
    target = constant_ints(input_at(node, 1)) if first is not None else None
    if first is None or target is None:
        return False
    literal = bool(node.attributes.get_int("allowzero", 0))
    between = first.outputs[0].shape
    if not literal:
        for axis, size in enumerate(target):
            if size == 0:
                known = None if between is None or axis >= len(between) else between[axis]
                if not isinstance(known, int) or known == 0:
                    return False
                target[axis] = known
    shape = new_constant(node, np.array(target, np.int64), "shape")
    replace_node(node, "Reshape", [first.inputs[0], shape], {"allowzero": 1} if literal else {})
    remove_if_unused(first)
    return True


@node_pass("Squeeze")
def fuse_consecutive_squeeze(node: ir.Node) -> bool:
    """Merges two consecutive Squeezes that both name their axes (see `fill_squeeze_axes`), if the rank is known."""
    first = producer_of(node.inputs[0], "Squeeze")
    if first is None:
        return False
    rank = rank_of(first.inputs[0])
    inner, outer = constant_ints(input_at(first, 1)), constant_ints(input_at(node, 1))
    if rank is None or inner is None or outer is None:
        return False
    gone = {axis % rank for axis in inner}
    left = [axis for axis in range(rank) if axis not in gone]
    axes = sorted(gone | {left[axis] for axis in outer})
    replace_node(node, "Squeeze", [first.inputs[0], new_constant(node, np.array(axes, np.int64), "axes")])
    remove_if_unused(first)
    return True


@node_pass("Transpose")
def fuse_consecutive_transpose(node: ir.Node) -> bool:
    """Merges two consecutive Transposes, or removes both if the second undoes the first. The first stays if other nodes read it."""
    first = producer_of(node.inputs[0], "Transpose")
    if first is None:
        return False
    inner, outer = _permutation(first), _permutation(node)
    if inner is None or outer is None:
        return False
    order = [inner[axis] for axis in outer]
    if order == sorted(order):
        changed = bypass(node, first.inputs[0])
    else:
        replace_node(node, "Transpose", [first.inputs[0]], {"perm": order})
        changed = True
    remove_if_unused(first)
    return changed


def _permutation(node: ir.Node) -> list[int] | None:
    given = node.attributes.get("perm")
    if given is not None:
        return None if given.is_ref() else list(given.as_ints())
    rank = rank_of(node.inputs[0])
    return None if rank is None else list(reversed(range(rank)))


@node_pass("Unsqueeze")
def fuse_consecutive_unsqueeze(node: ir.Node) -> bool:
    """Merges two consecutive Unsqueezes with constant axes, if the rank is known or no axis is negative."""
    first = producer_of(node.inputs[0], "Unsqueeze")
    if first is None:
        return False
    inner, outer = constant_ints(input_at(first, 1)), constant_ints(input_at(node, 1))
    rank = rank_of(first.inputs[0])
    if inner is None or outer is None or (rank is None and min(inner + outer, default=0) < 0):
        return False
    middle = (rank or 0) + len(inner)
    last = middle + len(outer)
    outer = [axis % last if axis < 0 else axis for axis in outer]
    inner = [axis % middle if axis < 0 else axis for axis in inner]
    # The axes that the second Unsqueeze adds shift the axes of the first.
    free = [axis for axis in range(max([*inner, *outer], default=0) + last + 1) if axis not in outer]
    axes = sorted([*outer, *(free[axis] for axis in inner)])
    replace_node(node, "Unsqueeze", [first.inputs[0], new_constant(node, np.array(axes, np.int64), "axes")])
    remove_if_unused(first)
    return True


@node_pass("BatchNormalization")
def fuse_bn_into_conv(node: ir.Node) -> bool:
    """Folds a BatchNormalization into the weights and bias of the Conv or ConvTranspose before it, if it is the only reader.

    The new weights are computed in double precision and rounded once to the type of the old weights. Weights that other nodes read are
    copied. If a new weight would not be finite in its type, both nodes stay.
    """
    conv = producer_of(node.inputs[0], "Conv", "ConvTranspose")
    if conv is None or only_use(conv.outputs[0]) is not node or node.attributes.get_int("training_mode", 0) != 0:
        return False
    statistics = [constant_of(value) for value in node.inputs[1:5]]
    weights, bias = constant_of(conv.inputs[1]), constant_of(input_at(conv, 2))
    if weights is None or (bias is None and input_at(conv, 2) is not None) or any(each is None for each in statistics):
        return False
    scale, shift, mean, variance = (np.asarray(each, np.float64) for each in statistics)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
        start = 0.0 if bias is None else bias.astype(np.float64)
        new_weights = (weights * _along_outputs(factor, weights, conv)).astype(weights.dtype)
        new_bias = ((start - mean) * factor + shift).astype(weights.dtype)
    if not (np.isfinite(new_weights.astype(np.float64)).all() and np.isfinite(new_bias.astype(np.float64)).all()):
        return False
    conv.resize_inputs(3)
    old = conv.inputs[1:3]
    conv.replace_input_with(1, new_constant(conv, new_weights, "weights"))
    conv.replace_input_with(2, new_constant(conv, new_bias, "bias"))
    for value in old:
        _drop(value)
    substitute(node.outputs[0], conv.outputs[0])
    read = list(node.inputs)
    remove_if_unused(node)
    for value in read:
        _drop(value)
    return True


def _along_outputs(factor: NDArray[Any], weights: NDArray[Any], conv: ir.Node) -> NDArray[Any]:
    """Returns `factor`, one number per output channel, reshaped to multiply `weights`."""
    spatial = (1,) * (weights.ndim - 2)
    if conv.op_type == "Conv":  # [outputs, inputs / group, ...]
        return factor.reshape(-1, 1, *spatial)
    # ConvTranspose: [inputs, outputs / group, ...], the inputs of a group in a row
    group = conv.attributes.get_int("group", 1)
    per_group = factor.reshape(group, 1, -1)
    rows = np.broadcast_to(per_group, (group, weights.shape[0] // group, weights.shape[1]))
    return rows.reshape(weights.shape[0], weights.shape[1], *spatial)


def _drop(value: ir.Value | None) -> None:
    """Removes an initialiser without readers, so that the weights are not in memory twice."""
    if value is not None and value.is_initializer() and not value.uses() and not value.is_graph_output() and not value.is_graph_input():
        graph = value.graph
        assert graph is not None, "an initialiser belongs to a graph"
        del graph.initializers[str(value.name)]
