"""Passes that replace casts, and operators that reduce along dimensions, by simpler ones."""

from math import prod
from typing import Final

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, constant_ints, constant_of, input_at, is_op, producer_of, static_shape
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass
from stoker.compiler.passes.registry import model_pass
from stoker.compiler.precision.representation import float8_use


@rewrite_pass("CastLike")
def replace_castlike(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces CastLike by Cast if the target type is known. Exact."""
    value, like = node.inputs
    if value is None or like is None or like.dtype is None:
        return False
    writing = Rewriting(editor, node)
    return writing.finish(writing.cast(value, like.dtype))


#: What ONNX Runtime's Where gives, and what its Equal compares besides.
_RESULTS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)
_SOURCES = (*_RESULTS, ir.DataType.INT8)


@rewrite_pass("Cast")
def replace_consecutive_cast_with_notzero(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces a Cast to BOOL and the Cast of its result to a number by a choice between 0 and 1. Exact, NaN included (it is not zero).

    Upstream's operator NotZero is its own; here it is Equal and Where, the two of ONNX that say it.
    """
    to_bool = producer_of(node.inputs[0], "Cast")
    value = None if to_bool is None else to_bool.inputs[0]
    result = ir.DataType(node.attributes["to"].as_int())
    if to_bool is None or value is None or to_bool.attributes["to"].as_int() != ir.DataType.BOOL:
        return False
    if value.dtype not in _SOURCES or result not in _RESULTS:
        return False
    writing = Rewriting(editor, node)
    is_zero = writing.op("Equal", value, writing.number(0, value, "zero"), dtype=ir.DataType.BOOL, shape=value.shape)
    numbers = [writing.array(result.numpy().type(number), role) for number, role in ((0, "no"), (1, "yes"))]
    return writing.finish(writing.op("Where", is_zero, *numbers, dtype=result, shape=value.shape))


@model_pass()
def remove_input_cast(model: ir.Model) -> bool:
    """Gives inputs that the model does nothing with but cast to one type that type, and takes the Casts out. The caller must cast then: off
    unless asked for.

    Exact for what the caller casts as ONNX does. Inputs with a default value, and inputs or types of strings, stay.
    """
    changed = False
    for value in model.graph.inputs:
        changed |= _retype(model.graph, value)
    return changed


def _retype(graph: ir.Graph, value: ir.Value) -> bool:
    casts = {use.node for use in value.uses()}
    if not casts or value.is_graph_output() or value.is_initializer() or value.dtype is None:
        return False
    if any(not is_op(cast, "Cast") or cast.graph is not graph for cast in casts):
        return False
    targets = {cast.attributes["to"].as_int() for cast in casts}
    if len(targets) > 1 or ir.DataType.STRING in (value.dtype, *targets):
        return False
    value.type = ir.TensorType(ir.DataType(targets.pop()))
    for cast in [node for node in graph if node in casts]:
        bypass(cast)
    return True


_GEMM_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@rewrite_pass("Gemm", before=("float_to_fp8",))
def replace_gemm_with_matmul(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Gemm by MatMul and Add, with Transpose and Mul as its attributes require; folds them into constants. Floats only.

    Tolerance is rounding: in FP16 the product is stored before the sum. One that computes in fp8 stays.
    """
    left, right, bias = node.inputs[0], node.inputs[1], input_at(node, 2)
    if left is None or right is None or left.dtype not in _GEMM_TYPES or float8_use(node) is not None:
        return False
    writing, whole = Rewriting(editor, node), node.outputs[0].shape
    alpha, beta = float_attribute(node, "alpha", 1.0), float_attribute(node, "beta", 1.0)
    if int_attribute(node, "transA", 0):
        left = _transposed(writing, left, "left")
    if int_attribute(node, "transB", 0):
        right = _transposed(writing, right, "right")
    if constant_of(right) is not None:
        right, alpha = _scaled(writing, right, alpha, "weights"), 1.0
    result = _scaled(writing, writing.op("MatMul", left, right, shape=whole), alpha, "alpha")
    if bias is not None and beta != 0:
        result = writing.op("Add", result, _scaled(writing, bias, beta, "bias"), shape=whole)
    return writing.finish(result)


def _transposed(writing: Rewriting, value: ir.Value, role: str) -> ir.Value:
    array, shape = constant_of(value), static_shape(value)
    if array is not None:
        return writing.array(array.T, f"{role}_transposed")
    return writing.op("Transpose", value, perm=[1, 0], shape=None if shape is None else shape[::-1])


def _scaled(writing: Rewriting, value: ir.Value, factor: float, role: str) -> ir.Value:
    array = constant_of(value)
    if factor == 1:
        return value
    if array is not None:
        return writing.array((array.astype(np.float64) * factor).astype(array.dtype), f"{role}_scaled")
    return writing.op("Mul", value, writing.number(factor, value, f"{role}_factor"), shape=value.shape)


#: With more elements the reciprocal of their number would be subnormal in FP16.
_MOST_ELEMENTS: Final = 1 << 14


@rewrite_pass("ReduceMean")
def replace_half_reducemean(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces ReduceMean in FP16 by ReduceSum and Mul. Tolerance is two roundings, as long as the sum stays below 65504, which the mean
    itself need not: off unless asked for.

    For known sizes, and at most 16384 elements a mean.
    """
    x, axes = node.inputs[0], input_at(node, 1)
    shape = static_shape(x)
    if x is None or x.dtype is not ir.DataType.FLOAT16 or shape is None:
        return False
    chosen = [] if axes is None else constant_ints(axes)
    if chosen is None or (not chosen and int_attribute(node, "noop_with_empty_axes", 0)):
        return False
    count = prod(shape[axis] for axis in chosen) if chosen else prod(shape)
    if not 0 < count <= _MOST_ELEMENTS:
        return False
    writing, result = Rewriting(editor, node), node.outputs[0].shape
    total = writing.op("ReduceSum", x, axes, shape=result, keepdims=int_attribute(node, "keepdims", 1))
    return writing.finish(writing.op("Mul", total, writing.number(1 / count, x, "share"), shape=result))


_SOFTMAX_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@rewrite_pass("Softmax")
def replace_softmax(editor: GraphEditor, node: ir.Node) -> bool:
    """Pads the input of a Softmax over the last dimension, where that is odd, with minus infinity to an even size, and cuts its output.

    IPUs compute with vectors of two or four halves. What is added has probability 0; the result is exact.
    """
    x, shape = node.inputs[0], static_shape(node.inputs[0])
    if x is None or x.dtype not in _SOFTMAX_TYPES or not shape or shape[-1] % 2 == 0 or shape[-1] == 1:
        return False
    rank, size = len(shape), shape[-1]
    if int_attribute(node, "axis", -1) not in (-1, rank - 1):
        return False
    writing, padded = Rewriting(editor, node), (*shape[:-1], size + 1)
    pads = writing.array(np.array([0] * (2 * rank - 1) + [1]), "pads")
    wide = writing.op("Pad", x, pads, writing.number(-np.inf, x, "nothing"), shape=padded, mode="constant")
    chances = writing.op("Softmax", wide, shape=padded, axis=rank - 1)
    bounds = [writing.array(np.array([at]), role) for at, role in ((0, "from"), (size, "to"), (rank - 1, "axis"))]
    return writing.finish(writing.op("Slice", chances, *bounds, shape=shape))


@rewrite_pass("NonZero")
def replace_nonzero(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces NonZero by ArgMax where the model declares that it finds exactly one element: its output has shape [rank, 1]. Exact then.

    A device of static shapes has no NonZero otherwise. Where the declaration is wrong, the first element found is given, or the place of
    element 0 if there is none.
    """
    x, shape, found = node.inputs[0], static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if x is None or x.dtype is None or not shape or prod(shape) == 0 or found != (len(shape), 1):
        return False
    writing, whole, truth = Rewriting(editor, node), ir.DataType.INT32, ir.DataType.BOOL
    if x.dtype is not truth:
        is_zero = writing.each("Equal", x, writing.number(0, x, "zero"), dtype=truth)
        x = writing.each("Not", is_zero)
    ones = writing.cast(x, whole)
    flat = writing.op("Reshape", ones, writing.array(np.array([-1]), "flat"), shape=(prod(shape),))
    indices = writing.op("ArgMax", flat, dtype=ir.DataType.INT64, shape=(1,), axis=0, keepdims=1)
    if len(shape) > 1:  # from the flat index to the index in each dimension, in the 32 bits that devices compute with
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        narrow = writing.cast(indices, whole)
        rows = writing.each("Div", narrow, writing.array(np.array(strides, np.int32), "strides"))
        coordinates = writing.each("Mod", rows, writing.array(np.array(shape, np.int32), "sizes"))
        indices = writing.cast(coordinates, ir.DataType.INT64)
    return writing.finish(writing.op("Reshape", indices, writing.array(np.array([len(shape), 1]), "as_column"), shape=found))
