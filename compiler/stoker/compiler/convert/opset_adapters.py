"""Adapters that rewrite a node for the opset before the version that changed its operator.

An adapter is registered for (operator, version that changed it). It rewrites the node for the previous version and returns the resulting
nodes, because these may need further conversion. It may return the node unchanged or reject it. The rules follow ONNX's operator changelog.
"""

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from stoker.compiler.convert.opset_versions import Adapter, CannotAdapt, adapts
from stoker.compiler.passes.edit import (
    Chain,
    bypass,
    constant_ints,
    constant_of,
    input_at,
    new_constant,
    rank_of,
    replace_node,
    static_shape,
)

ADAPTERS: dict[tuple[str, int], Adapter] = {}
_adapts = functools.partial(adapts, ADAPTERS)


def _set(node: ir.Node, name: str, value: Any) -> None:
    node.attributes[name] = ir.convenience.convert_attribute(name, value)


def _ints(node: ir.Node, index: int, name: str) -> list[int] | None:
    """Returns the constant integer list in input `index`; None if the input is missing.

    Raises:
        CannotAdapt: it is computed by the model.
    """
    value = input_at(node, index)
    if value is None:
        return None
    found = constant_ints(value)
    if found is None:
        raise CannotAdapt(f"'{name}' ('{value.name}') is computed, and was an attribute then")
    return found


def _ints_to_attribute(node: ir.Node, index: int, name: str) -> list[ir.Node]:
    numbers = _ints(node, index, name)
    node.resize_inputs(index)
    if numbers is not None:
        _set(node, name, numbers)
    return [node]


_adapts(13, "Squeeze", "Unsqueeze")(lambda node: _ints_to_attribute(node, 1, "axes"))
_adapts(13, "Split")(lambda node: _ints_to_attribute(node, 1, "split"))

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


@_adapts(18, *(f"Reduce{kind}" for kind in _REDUCTIONS))
@_adapts(13, "ReduceSum")
def _reduction(node: ir.Node) -> list[ir.Node]:
    """Empty axes meant all axes. With `noop_with_empty_axes` they mean none, which older versions cannot express."""
    axes = _ints(node, 1, "axes")
    noop = node.attributes.pop("noop_with_empty_axes", None)
    if not axes and noop is not None and noop.as_int():
        if node.op_type in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"):
            raise CannotAdapt("it reduces over no axis, but still applies its function to each element")
        return [] if bypass(node) else [node]
    node.resize_inputs(1)
    if axes:
        _set(node, "axes", axes)
    return [node]


@_adapts(18, "Split")
def _split_into_sizes(node: ir.Node) -> list[ir.Node]:
    """`num_outputs` allows a smaller last piece; older versions need a list of the unequal sizes."""
    wanted = node.attributes.pop("num_outputs", None)
    if wanted is None or input_at(node, 1) is not None:
        return [node]
    shape = static_shape(node.inputs[0])
    axis = node.attributes.get_int("axis", 0)
    pieces = len(node.outputs)
    if shape is None:
        raise CannotAdapt("the size of the dimension it splits is not known")
    size = shape[axis]
    if size % pieces:
        piece = -(-size // pieces)
        sizes = [min(piece, size - piece * index) for index in range(pieces)]
        if sizes[-1] <= 0:
            raise CannotAdapt(f"{size} elements do not make {pieces} pieces")
        node.resize_inputs(2)
        node.replace_input_with(1, new_constant(node, np.array(sizes, np.int64), "split"))
    return [node]


@_adapts(18, "Pad")
def _pad_all_axes(node: ir.Node) -> list[ir.Node]:
    axes = _ints(node, 3, "axes")
    node.resize_inputs(min(len(node.inputs), 3))
    if axes is None:
        return [node]
    rank, pads = rank_of(node.inputs[0]), _ints(node, 1, "pads")
    if rank is None or pads is None:
        raise CannotAdapt("it pads some axes of a tensor of unknown rank")
    full = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        full[axis % rank] = pads[index]
        full[axis % rank + rank] = pads[index + len(axes)]
    node.replace_input_with(1, new_constant(node, np.array(full, np.int64), "pads"))
    return [node]


@_adapts(11, "Pad")
def _pad_to_attributes(node: ir.Node) -> list[ir.Node]:
    fill = constant_of(input_at(node, 2))
    if input_at(node, 2) is not None and fill is None:
        raise CannotAdapt("the value to pad with is computed, and was an attribute then")
    if fill is not None:
        _set(node, "value", float(fill.reshape(-1)[0]))
    node.resize_inputs(min(len(node.inputs), 2))
    return _ints_to_attribute(node, 1, "pads")


@_adapts(11, "Clip")
def _clip_to_attributes(node: ir.Node) -> list[ir.Node]:
    for index, name in ((1, "min"), (2, "max")):
        value = input_at(node, index)
        limit = constant_of(value)
        if value is not None and limit is None:
            raise CannotAdapt(f"'{name}' is computed, and was an attribute then")
        if limit is not None:
            _set(node, name, float(limit.reshape(-1)[0]))
    node.resize_inputs(1)
    return [node]


@_adapts(10, "Slice")
def _slice_to_attributes(node: ir.Node) -> list[ir.Node]:
    steps = _ints(node, 4, "steps")
    if steps is not None and any(step != 1 for step in steps):
        raise CannotAdapt("steps other than 1 came with opset 10")
    node.resize_inputs(min(len(node.inputs), 4))
    for index, name in ((3, "axes"), (2, "ends"), (1, "starts")):
        if index < len(node.inputs):
            _ints_to_attribute(node, index, name)
    return [node]


def _reject_value(node: ir.Node, name: str, *values: str, since: int) -> list[ir.Node]:
    """Returns the node unchanged, unless its attribute `name` has one of `values`, which opset `since` added."""
    attribute = node.attributes.get(name)
    if attribute is not None and attribute.as_string() in values:
        raise CannotAdapt(f"{name} '{attribute.as_string()}' is new in opset {since}")
    return [node]


_adapts(19, "Pad")(lambda node: _reject_value(node, "mode", "wrap", since=19))
_adapts(19, "Resize")(lambda node: _reject_value(node, "coordinate_transformation_mode", "half_pixel_symmetric", since=19))
_adapts(18, "ScatterElements", "ScatterND")(lambda node: _reject_value(node, "reduction", "max", "min", since=18))


@_adapts(9, "Scan")
def _scan_without_batch(node: ir.Node) -> list[ir.Node]:
    raise CannotAdapt("before opset 9, Scan scanned each row of a batch by itself")


@_adapts(20, "DFT")
def _dft_axis_to_attribute(node: ir.Node) -> list[ir.Node]:
    axes, rank = _ints(node, 2, "axis"), rank_of(node.inputs[0])
    axis = -2 if axes is None else axes[0]
    if axis < 0 and rank is None:
        raise CannotAdapt(f"its axis {axis} counts from the end of a tensor of unknown rank")
    node.resize_inputs(min(len(node.inputs), 2))
    _set(node, "axis", axis if axis >= 0 or rank is None else axis + rank)
    return [node]


@_adapts(13, "Resize")
def _resize_with_all_inputs(node: ir.Node) -> list[ir.Node]:
    """`roi` and `scales` were required inputs: missing ones become empty tensors."""
    for index, name in ((1, "roi"), (2, "scales")):
        if input_at(node, index) is None:
            node.resize_inputs(max(len(node.inputs), index + 1))
            node.replace_input_with(index, new_constant(node, np.zeros(0, np.float32), name))
    return [node]


@_adapts(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_of_last_axis(node: ir.Node) -> list[ir.Node]:
    """Older versions flatten all dimensions from `axis` on. This is equivalent only for the last axis, so the axis is transposed to the
    end.
    """
    axis = node.attributes.get_int("axis", -1)
    rank = rank_of(node.inputs[0])
    if rank is not None and not -rank <= axis < rank:
        raise CannotAdapt(f"its axis is {axis}, and its input has {rank} dimensions")
    if axis == -1 or (rank is not None and axis % rank == rank - 1):
        _set(node, "axis", -1)
        return [node]
    if rank is None:
        raise CannotAdapt(f"its axis {axis} counts from the front of a tensor of unknown rank")
    order = list(range(rank))
    order[axis % rank], order[-1] = order[-1], order[axis % rank]
    shape, kind, output = node.inputs[0].shape if node.inputs[0] else None, node.outputs[0].type, node.outputs[0].name
    moved = None if shape is None else ir.Shape([shape[each] for each in order])
    before = ir.Node("", "Transpose", [node.inputs[0]], [ir.AttrInt64s("perm", order)])
    before.outputs[0].name, before.outputs[0].shape, before.outputs[0].type = f"{output}_axis_last", moved, kind
    inner = ir.Node("", node.op_type, before.outputs, [ir.AttrInt64("axis", -1)], name=node.name, metadata_props=dict(node.metadata_props))
    inner.outputs[0].name, inner.outputs[0].shape, inner.outputs[0].type = f"{output}_by_last_axis", moved, kind
    graph = node.graph
    assert graph is not None, "only nodes of graphs are adapted"
    graph.insert_before(node, [before, inner])
    last = replace_node(node, "Transpose", inner.outputs, {"perm": order})
    last.name = f"{inner.name}_axis_back" if inner.name else None
    return [before, inner, last]


@_adapts(12, "Dropout")
def _dropout_of_inference(node: ir.Node) -> list[ir.Node]:
    """Without a training mode, Dropout was an inference operator and ignored its ratio."""
    training = input_at(node, 2)
    mode = constant_of(training)
    if training is not None and (mode is None or bool(mode.any())):
        raise CannotAdapt("it drops out at inference")
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise CannotAdapt("its mask is read, which is another one before opset 12")
    node.resize_outputs(1)
    node.attributes.pop("seed", None)
    node.resize_inputs(1)
    return [node]


@_adapts(12, "Constant")
def _constant_as_tensor(node: ir.Node) -> list[ir.Node]:
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    if tensor is None:
        raise CannotAdapt("its value is an attribute of a function")
    node.attributes.clear()
    node.attributes["value"] = ir.AttrTensor("value", tensor)
    return [node]


@_adapts(15, "Shape")
def _shape_of_some_dimensions(node: ir.Node) -> list[ir.Node]:
    """`start` and `end` are clamped as in Slice."""
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", np.iinfo(np.int64).max)
    node.attributes.pop("start", None)
    node.attributes.pop("end", None)
    if start == 0 and end == np.iinfo(np.int64).max:
        return [node]
    whole = ir.Node("", "Shape", [node.inputs[0]], name=node.name)
    whole.outputs[0].name = f"{node.outputs[0].name}_whole"
    graph = node.graph
    assert graph is not None, "only nodes of graphs are adapted"
    graph.insert_before(node, whole)
    limits = [new_constant(node, np.array([each], np.int64), role) for each, role in ((start, "start"), (end, "end"), (0, "axis"))]
    sliced = replace_node(node, "Slice", [whole.outputs[0], *limits])
    sliced.name = f"{whole.name}_slice" if whole.name else None
    return [whole, sliced]


@_adapts(16, "RoiAlign")
def _roi_align(node: ir.Node) -> list[ir.Node]:
    mode = node.attributes.pop("coordinate_transformation_mode", None)
    if mode is None or mode.as_string() != "output_half_pixel":
        raise CannotAdapt("pixels were not shifted by a half then (coordinate_transformation_mode other than output_half_pixel)")
    return [node]


@_adapts(20, "GridSample")
def _grid_sample_names(node: ir.Node) -> list[ir.Node]:
    names = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    if rank_of(node.inputs[0]) != 4:
        raise CannotAdapt("it samples other than images")
    mode = node.attributes.get("mode")
    _set(node, "mode", names["linear" if mode is None else mode.as_string()])
    return [node]


@_adapts(28, "Mod")
def _mod_of_floats(node: ir.Node) -> list[ir.Node]:
    """Replaces a remainder of floats with the sign of the divisor, which older opsets compute for integers only."""
    x, y = node.inputs
    if node.attributes.get_int("fmod", 0):
        return [node]
    if x is None or y is None or x.dtype is None:
        raise CannotAdapt("the element type of its input is not known")
    if not x.dtype.is_floating_point():
        return [node]
    build = Chain(node)
    rest = build.add("Mod", [x, y], "rest", fmod=1)
    signs = build.add("Mul", [build.add("Sign", [rest], "sign"), build.add("Sign", [y], "divisor_sign")], "signs")
    zero = new_constant(node, np.zeros((), x.dtype.numpy()), "zero")
    differs = build.add("Less", [signs, zero], "differs")
    differs.type = ir.TensorType(ir.DataType.BOOL)
    last = replace_node(node, "Where", [differs, build.add("Add", [rest, y], "moved"), rest])
    return [*build.nodes, last]


@_adapts(17, "LayerNormalization")
def _layer_normalization(node: ir.Node) -> list[ir.Node]:
    """Replaces the node by its definition, with statistics in FLOAT if `stash_type` requires it. The result is at opset 16 and may be
    converted further.

    ONNX's function for this operator flattens and reshapes, which hides the pattern from later passes.
    """
    rank, source = rank_of(node.inputs[0]), node.inputs[0]
    if rank is None or source is None or source.dtype is None:
        raise CannotAdapt("the rank or element type of its input is not known")
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise CannotAdapt("its mean or its deviation is read")
    axis = node.attributes.get_int("axis", -1) % rank
    kind = source.dtype
    inner = ir.DataType.FLOAT if node.attributes.get_int("stash_type", 1) == 1 else kind
    epsilon = np.array(node.attributes.get_float("epsilon", 1e-5)).astype(inner.numpy())
    build = Chain(node)
    x = build.cast(source, inner, "wide")
    mean = build.add("ReduceMean", [x], "mean", axes=list(range(axis, rank)), keepdims=1)
    centred = build.add("Sub", [x, mean], "centred")
    square = build.add("Mul", [centred, centred], "square")
    variance = build.add("ReduceMean", [square], "variance", axes=list(range(axis, rank)), keepdims=1)
    shifted = build.add("Add", [variance, new_constant(node, epsilon, "epsilon")], "shifted")
    deviation = build.add("Sqrt", [shifted], "deviation")
    result = build.cast(build.add("Div", [centred, deviation], "normal"), kind, "narrow")
    bias = input_at(node, 2)
    if bias is not None:
        result = build.add("Mul", [result, node.inputs[1]], "scaled")
    node.resize_outputs(1)
    last = replace_node(node, "Mul" if bias is None else "Add", [result, node.inputs[1] if bias is None else bias])
    return [*build.nodes, last]
