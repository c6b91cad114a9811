"""Forms that the IPU's compiler does not accept are replaced."""

from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import bypass, constant_ints, constant_of, rank_of, static_shape
from stoker.compiler.passes.matching.edges import int_attribute, is_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass


@rewrite_pass("BatchNormalization")
def batchnorm_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Gives the parameters of BatchNormalization the element type of its input, and takes out outputs that nothing reads.

    ONNX lets scale, offset, mean and variance have types of their own, and exporters for training leave further outputs. Which gap of
    PopART upstream works around is not documented; these are what an operator of one type and one output needs. Only in inference mode.
    Tolerance is the rounding of parameters.
    """
    x = node.inputs[0]
    if x is None or x.dtype is None or int_attribute(node, "training_mode", 0):
        return False
    changed = False
    for index, value in list(enumerate(node.inputs))[1:5]:
        if value is not None and value.dtype is not None and value.dtype is not x.dtype:
            node.replace_input_with(index, _cast(editor, node, value, x.dtype))
            editor.remove_dead(value.producer())
            editor.drop_unused_initializers([value])
            changed = True
    if len(node.outputs) > 1 and not any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        node.resize_outputs(1)
        changed = True
    return changed


def _cast(editor: GraphEditor, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    array, writing = constant_of(value), Rewriting(editor, node)
    if array is not None:
        return writing.array(array.astype(dtype.numpy()), str(value.name))
    return writing.cast(value, dtype)


_SUMMED_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
#: The longest dimension that is summed over so: the triangle then takes 1 MiB in FP32, spread over all tiles.
_LONGEST: Final = 512


@rewrite_pass("CumSum")
def cumsum_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces CumSum of floats along a constant axis of at most 512 elements by MatMul with a triangle of ones, Transpose around it if the
    axis is not the last. Integers and longer dimensions stay.

    Products are what an IPU is fastest at. Tolerance is rounding, in another order of the same sums. An infinity or NaN in a row spreads
    over the whole row. Which gap of PopART upstream works around is not documented.
    """
    x, shape, axes = node.inputs[0], static_shape(node.inputs[0]), constant_ints(node.inputs[1])
    if x is None or x.dtype not in _SUMMED_TYPES or not shape or axes is None or len(axes) != 1:
        return False
    axis, rank = axes[0] % len(shape), len(shape)
    size = shape[axis]
    if not 0 < size <= _LONGEST:
        return False
    writing, turned = Rewriting(editor, node), list(range(rank))
    turned[axis], turned[-1] = rank - 1, axis  # an exchange of two, which is its own inverse
    moved = tuple(shape[each] for each in turned)
    rows = x if axis == rank - 1 else writing.op("Transpose", x, shape=moved, perm=turned)
    triangle = writing.array(_triangle(node, size).astype(x.dtype.numpy()), "triangle")
    sums = writing.op("MatMul", rows, triangle, shape=moved)
    return writing.finish(sums if axis == rank - 1 else writing.op("Transpose", sums, shape=shape, perm=turned))


def _triangle(node: ir.Node, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[i, j] says whether element i is part of sum j."""
    start = int_attribute(node, "exclusive", 0)
    upper = np.triu(np.ones((size, size), np.bool_), start)
    return upper.T if int_attribute(node, "reverse", 0) else upper


#: Operators that ONNX has for integers as well, and the inputs that share their type (a reduction's axes and an exponent do not).
_SHARED = {
    "MatMul": (0, 1),
    "Gemm": (0, 1, 2),
    "Pow": (0,),
    **dict.fromkeys(("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (0,)),
}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)


@rewrite_pass(*_SHARED)
def float_ops_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Puts Casts to FLOAT and back around products, powers, means, norms and logarithms of integers, for targets that have them in floats.

    IPUs multiply matrices in floats only; which operators upstream's pass is about is not documented. Exact while all numbers stay below
    2**24; fractions are cut off, as ONNX Runtime does.
    """
    kind = node.outputs[0].dtype or (node.inputs[0].dtype if node.inputs[0] is not None else None)
    if kind not in _INTEGERS or all(value is None or is_constant(value) for value in node.inputs):
        return False
    writing, shape = Rewriting(editor, node), node.outputs[0].shape
    inputs = list(node.inputs)
    for index in _SHARED[node.op_type]:
        value = inputs[index] if index < len(inputs) else None
        if value is not None:
            inputs[index] = writing.cast(value, ir.DataType.FLOAT)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result = writing.op(node.op_type, *inputs, dtype=ir.DataType.FLOAT, shape=shape, **attributes)
    return writing.finish(writing.cast(result, kind))


_ALONG_AN_AXIS = ("Gather", "GatherElements", "ScatterElements")
_ALONG_SEVERAL = ("GatherND", "ScatterND")


@rewrite_pass(*_ALONG_AN_AXIS, *_ALONG_SEVERAL)
def indices_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Makes negative constant indices of Gather and Scatter operators count from the start. Exact.

    Which gap of PopART upstream works around is not documented. The indexed dimensions must be known. Indices that are computed stay:
    whether they are negative is not known.
    """
    indices = node.inputs[1]
    array = constant_of(indices)
    if indices is None or array is None or not np.any(array < 0):
        return False
    sizes = _indexed_sizes(node, array)
    if sizes is None:
        return False
    counted = np.where(array < 0, array + sizes, array).astype(array.dtype)
    node.replace_input_with(1, Rewriting(editor, node).array(counted, "indices"))
    editor.remove_dead(indices.producer())
    editor.drop_unused_initializers([indices])
    return True


def _indexed_sizes(node: ir.Node, indices: NDArray[Any]) -> NDArray[np.int64] | None:
    """The sizes of the dimensions that are indexed, to be added to negative indices; None where they are not known."""
    shape = static_shape(node.inputs[0])
    if not shape:
        return None
    if node.op_type in _ALONG_AN_AXIS:
        return np.array(shape[int_attribute(node, "axis", 0)])
    first, count = int_attribute(node, "batch_dims", 0), indices.shape[-1]
    return np.array(shape[first : first + count])


_INDICES = (ir.DataType.INT32, ir.DataType.INT64)


@rewrite_pass("OneHot")
def onehot_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Casts indices of OneHot that are no INT32 or INT64 to INT64, which ONNX says is done before use, and makes its axis count from the
    start.

    Exact. Which gap of PopART upstream works around is not documented.
    """
    changed = False
    indices, rank, axis = node.inputs[0], rank_of(node.inputs[0]), int_attribute(node, "axis", -1)
    if indices is not None and indices.dtype is not None and indices.dtype not in _INDICES:
        node.replace_input_with(0, Rewriting(editor, node).cast(indices, ir.DataType.INT64))
        changed = True
    if rank is not None and axis < 0:
        node.attributes["axis"] = ir.AttrInt64("axis", axis + rank + 1)
        changed = True
    return changed


_SIGNED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


@rewrite_pass("TopK")
def topk_workaround(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces TopK of the smallest by TopK of the largest of the negated elements, negated again, and makes its axis count from the start.

    Exact, ties included, but for the smallest integer of a type, which has no negative. Which gap of PopART upstream works around is not
    documented.
    """
    x, rank, axis = node.inputs[0], rank_of(node.inputs[0]), int_attribute(node, "axis", -1)
    changed = False
    if rank is not None and axis < 0:
        node.attributes["axis"] = ir.AttrInt64("axis", axis + rank)
        changed = True
    if x is None or int_attribute(node, "largest", 1) or x.dtype not in _SIGNED:
        return changed
    node.replace_input_with(0, Rewriting(editor, node).each("Neg", x))
    node.attributes["largest"] = ir.AttrInt64("largest", 1)
    values = node.outputs[0]
    if values.uses() or values.is_graph_output():
        editor.insert_after(node, values, "Neg", name=f"{node.name or 'TopK'}/Neg", metadata=node.metadata_props)
    return True


@rewrite_pass("Concat")
def remove_empty_concat_inputs(editor: GraphEditor, node: ir.Node) -> bool:
    """Takes inputs whose size along the axis is known to be 0 out of Concat, and a Concat of one input altogether. Exact.

    A Concat of nothing but such inputs stays.
    """
    axis = int_attribute(node, "axis", 0)
    kept = [value for value in node.inputs if not _is_empty(value, axis)]
    if not kept or (len(kept) == len(node.inputs) > 1):
        return False
    dropped = [value for value in node.inputs if value is not None and _is_empty(value, axis)]
    if len(kept) == 1:
        changed = bypass(node, kept[0])
    else:
        for index, value in enumerate(kept):
            node.replace_input_with(index, value)
        node.resize_inputs(len(kept))
        changed = True
    if changed:
        editor.remove_dead(*(value.producer() for value in dropped))
        editor.drop_unused_initializers(dropped)
    return changed


def _is_empty(value: ir.Value | None, axis: int) -> bool:
    shape = None if value is None else value.shape
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0
