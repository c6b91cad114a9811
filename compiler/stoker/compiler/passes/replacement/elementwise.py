"""Passes that replace element-wise operators by simpler ones."""

from typing import Final

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, input_at, is_op, rank_of
from stoker.compiler.passes.matching.edges import int_attribute, is_constant, scalar_of
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass


@rewrite_pass("Clip")
def replace_clip_empty_inputs(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Clip without an upper bound by Max and Clip without a lower bound by Min; removes Clip without bounds.

    Exact for finite numbers. A bound that is left out means the largest or lowest number of the type, so that Clip makes infinities finite,
    and these operators do not. Filling that number in would make a constant that `float_to_half` clips, with a warning.
    """
    value, low, high = node.inputs[0], input_at(node, 1), input_at(node, 2)
    if value is None or (low is not None and high is not None):
        return False
    writing = Rewriting(editor, node)
    bound = low if low is not None else high
    if bound is None:
        return writing.finish(value)
    if rank_of(bound) != 0:  # some exporters write a bound of shape [1], and Max would broadcast that dimension into the result
        return False
    return writing.finish(writing.op("Max" if low is not None else "Min", value, bound, shape=value.shape))


#: What makes a last bit count: 41 / 41 is 1, while 41 * (1 / 41) may be less, and its floor 0.
_STEPS = ("Floor", "Ceil", "Round", "Mod", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


@rewrite_pass("Div")
def replace_div_with_mul(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces a Div of floats by a constant with a Mul: exact for powers of two, else the reciprocal is rounded once more (1 ulp).

    Left alone where a divisor is zero, or its reciprocal would overflow or be subnormal; and, unless it is exact, where the quotient is
    rounded, compared or made an integer.
    """
    value, divisor = node.inputs
    array = constant_of(divisor)
    if value is None or array is None or array.dtype.kind != "f" or is_constant(value) or not np.all(array):
        return False
    limits = np.finfo(array.dtype)
    exact = 1.0 / array.astype(np.float64)
    magnitude = np.abs(exact)
    if not np.all((magnitude >= float(limits.tiny)) & (magnitude <= float(limits.max))):
        return False
    if np.any(np.frexp(magnitude)[0] != 0.5) and any(_makes_steps(use.node) for use in node.outputs[0].uses()):
        return False
    writing = Rewriting(editor, node)
    reciprocal = writing.array(exact.astype(array.dtype), "reciprocal")
    return writing.finish(writing.op("Mul", value, reciprocal, shape=node.outputs[0].shape))


def _makes_steps(node: ir.Node) -> bool:
    """Whether a small change of the input can cause a large change of the output."""
    if is_op(node, "Cast"):
        return not ir.DataType(node.attributes["to"].as_int()).is_floating_point()
    return is_op(node, *_STEPS)


_WHOLE_POWERS = (1.0, 2.0, 3.0, 4.0)
_OTHER_POWERS = (0.5, -0.5, -1.0)


@rewrite_pass("Pow")
def replace_pow(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Pow with a constant exponent of 1, 2, 3, 4, 1/2, -1/2 or -1 by Mul, Sqrt and Reciprocal; integers with 1 to 4 only.

    Tolerance is rounding. Minus infinity to the power of 1/2 becomes NaN, where Pow gives infinity.
    """
    x, exponent = node.inputs[0], scalar_of(node.inputs[1])
    if x is None or x.dtype is None or exponent is None or (rank_of(node.inputs[1]) or 0) > (rank_of(x) or 0):
        return False
    if exponent not in _WHOLE_POWERS and not (exponent in _OTHER_POWERS and x.dtype.is_floating_point()):
        return False
    writing = Rewriting(editor, node)
    if exponent == 1:
        return writing.finish(x)
    if exponent in _OTHER_POWERS:
        root = x if exponent == -1 else writing.op("Sqrt", x, shape=x.shape)
        return writing.finish(root if exponent > 0 else writing.op("Reciprocal", root, shape=x.shape))
    square = writing.op("Mul", x, x, shape=x.shape)
    if exponent == 2:
        return writing.finish(square)
    return writing.finish(writing.op("Mul", square, x if exponent == 3 else square, shape=x.shape))


@rewrite_pass("Round")
def replace_round(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Round by Floor and comparisons; halves round to the even neighbour, as ONNX requires. Exact.

    For targets whose own rounding treats a half in another way; upstream documents that its pass is about halves, and no more.
    """
    x = node.inputs[0]
    if x is None or x.dtype is None:
        return False
    writing, truth = Rewriting(editor, node), ir.DataType.BOOL
    half = writing.number(0.5, x, "half")
    below = writing.each("Floor", x)
    rest = writing.each("Sub", x, below)  # exact; NaN for infinite elements, which then keep their value
    # Half of an odd number is not an integer.
    halved = writing.each("Mul", below, half)
    is_odd = writing.each("Greater", halved, writing.each("Floor", halved), dtype=truth)
    is_half = writing.each("Equal", rest, half, dtype=truth)
    is_more = writing.each("Greater", rest, half, dtype=truth)
    goes_up = writing.each("Or", is_more, writing.each("And", is_half, is_odd))
    step = writing.cast(goes_up, x.dtype)
    return writing.finish(writing.each("Add", below, step))


_ISINF_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


@rewrite_pass("IsInf")
def replace_isinf(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces IsInf by a comparison with the largest finite number of the type. Exact.

    Compared with the largest number, not with infinity: `float_to_half` makes that constant 65500, and infinity stays above it (65504, the
    largest FP16 number, then is so too).
    """
    x = node.inputs[0]
    finds_positive, finds_negative = (int_attribute(node, f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if x is None or x.dtype not in _ISINF_TYPES or not (finds_positive or finds_negative):
        return False
    writing, largest = Rewriting(editor, node), float(np.finfo(x.dtype.numpy()).max)
    if finds_positive:
        size = writing.each("Abs", x) if finds_negative else x
        return writing.finish(writing.each("Greater", size, writing.number(largest, x, "largest"), dtype=ir.DataType.BOOL))
    return writing.finish(writing.each("Less", x, writing.number(-largest, x, "lowest"), dtype=ir.DataType.BOOL))


@rewrite_pass("HardSwish")
def replace_hardswish(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces HardSwish by Mul of x and HardSigmoid(x) with slope 1/6 and offset 1/2, which is its definition. Tolerance is rounding."""
    x = node.inputs[0]
    if x is None:
        return False
    writing = Rewriting(editor, node)
    gate = writing.each("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    return writing.finish(writing.each("Mul", x, gate))


#: erf(x) is about tanh(x * (LINEAR + CUBIC * x * x)). Fitted here for the least largest error over x in (0, 6]; beyond it both are 1.
LINEAR: Final = 1.12967582
CUBIC: Final = 0.09979271
#: The largest |tanh(...) - erf(x)| over all x.
ERROR_BOUND: Final = 2.9e-4

_ERF_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@rewrite_pass("Erf")
def replace_erf_with_erfv2(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Erf by tanh (an instruction of IPUs) of a polynomial of third degree. Off by default.

    At most 2.9e-4 off, less than the spacing of FP16 numbers near 1.
    The approximation is odd and keeps its relative precision (0.2 %) near zero. Upstream's operator ErfV2 is not public; its error is said
    to be larger than Erf's and is not given.
    """
    x = node.inputs[0]
    if x is None or x.dtype not in _ERF_TYPES:
        return False
    writing = Rewriting(editor, node)
    square = writing.each("Mul", x, x)
    cubic = writing.each("Mul", square, writing.number(CUBIC, x, "cubic"))
    slope = writing.each("Add", cubic, writing.number(LINEAR, x, "linear"))
    return writing.finish(writing.each("Tanh", writing.each("Mul", x, slope)))


@rewrite_pass("GreaterOrEqual")
def replace_greater_or_equal(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces GreaterOrEqual of floats by Or of Greater and Equal, and of integers by Not of Less. Exact; NaN compares false as before."""
    return split_or_equal(editor, node, "Greater", "Less")


@rewrite_pass("LessOrEqual")
def replace_less_or_equal(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces LessOrEqual of floats by Or of Less and Equal, and of integers by Not of Greater. Exact; NaN compares false as before."""
    return split_or_equal(editor, node, "Less", "Greater")


def split_or_equal(editor: GraphEditor, node: ir.Node, strict: str, opposite: str) -> bool:
    """Replaces `node` by operator `strict` or Equal; for integers by the negation of `opposite`, which for floats NaN forbids."""
    left, right = node.inputs
    if left is None or right is None or left.dtype is None:
        return False
    writing, shape, truth = Rewriting(editor, node), node.outputs[0].shape, ir.DataType.BOOL
    if not left.dtype.is_floating_point():
        return writing.finish(writing.op("Not", writing.op(opposite, left, right, dtype=truth, shape=shape), shape=shape))
    is_beyond = writing.op(strict, left, right, dtype=truth, shape=shape)
    is_equal = writing.op("Equal", left, right, dtype=truth, shape=shape)
    return writing.finish(writing.op("Or", is_beyond, is_equal, shape=shape))
