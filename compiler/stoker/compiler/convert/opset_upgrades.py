"""Adapters that rewrite a node for the version that changed its operator.

An adapter is registered for (operator, version that changed it). It rewrites the node for that version and returns the resulting nodes,
because these may need further conversion; or it rejects the node. The rules follow ONNX's operator changelog. If the changelog leaves a
result undefined (the rounding of a size to a pixel), the rules follow ONNX Runtime's kernels for the older version.
"""

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from stoker.compiler.convert.opset_versions import Adapter, CannotAdapt, adapts
from stoker.compiler.passes.edit import Chain, constant_of, input_at, new_constant, rank_of, replace_node, static_shape, unused_name

UPGRADES: dict[tuple[str, int], Adapter] = {}
_upgrades = functools.partial(adapts, UPGRADES)


def _set_default(node: ir.Node, name: str, value: Any) -> None:
    """Sets an attribute that the node omits."""
    if name not in node.attributes:
        node.attributes[name] = ir.convenience.convert_attribute(name, value)


def _to_input(node: ir.Node, name: str, index: int) -> None:
    """Moves an integer or a list of integers from an attribute to input `index`; an empty or missing attribute is dropped."""
    attribute = node.attributes.pop(name, None)
    if attribute is None:
        return
    numbers = [attribute.as_int()] if attribute.type == ir.AttributeType.INT else list(attribute.as_ints())
    if numbers:
        _put(node, index, np.array(numbers, np.int64), name)


def _put(node: ir.Node, index: int, array: "np.ndarray[Any, Any]", role: str) -> None:
    node.resize_inputs(max(len(node.inputs), index + 1))
    node.replace_input_with(index, new_constant(node, array, role))


def _number(node: ir.Node, value: float) -> "np.ndarray[Any, Any]":
    """Returns `value` as a scalar of the element type of the node's first input; infinite if it is out of range."""
    source = node.inputs[0]
    kind = source.dtype if source is not None and source.dtype is not None else ir.DataType.FLOAT
    with np.errstate(over="ignore"):
        return np.array(value).astype(kind.numpy())


def _to_inputs(node: ir.Node, *names: str) -> list[ir.Node]:
    """Moves attributes to the inputs from index 1 on."""
    for index, name in enumerate(names, 1):
        _to_input(node, name, index)
    return [node]


_upgrades(13, "Squeeze", "Unsqueeze", "ReduceSum")(lambda node: _to_inputs(node, "axes"))
_upgrades(18, *(f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")))(
    lambda node: _to_inputs(node, "axes")
)
_upgrades(13, "Split")(lambda node: _to_inputs(node, "split"))
_upgrades(10, "TopK")(lambda node: _to_inputs(node, "k"))
_upgrades(10, "Slice")(lambda node: _to_inputs(node, "starts", "ends", "axes"))


@_upgrades(18, "Split")
def _split_says_how_many(node: ir.Node) -> list[ir.Node]:
    """Without sizes, the number of equal pieces was the number of outputs; now an attribute states it."""
    if input_at(node, 1) is None:
        _set_default(node, "num_outputs", len(node.outputs))
    return [node]


@_upgrades(11, "Pad")
def _pad_to_inputs(node: ir.Node) -> list[ir.Node]:
    _to_input(node, "pads", 1)
    fill = node.attributes.pop("value", None)
    if fill is not None and fill.as_float() != 0:
        _put(node, 2, _number(node, fill.as_float()), "value")
    return [node]


@_upgrades(11, "Clip")
def _clip_to_inputs(node: ir.Node) -> list[ir.Node]:
    for index, name in ((1, "min"), (2, "max")):
        limit = node.attributes.pop(name, None)
        if limit is not None:
            _put(node, index, _number(node, limit.as_float()), name)
    return [node]


@_upgrades(9, "BatchNormalization")
def _batch_normalization_by_channel(node: ir.Node) -> list[ir.Node]:
    spatial = node.attributes.pop("spatial", None)
    if spatial is not None and not spatial.as_int():
        raise CannotAdapt("it normalises each element by itself (spatial = 0), which opset 9 removed")
    return [node]


@_upgrades(14, "BatchNormalization")
def _batch_normalization_of_inference(node: ir.Node) -> list[ir.Node]:
    """More than one output selected training mode."""
    _only_first_output(node, "it is set to training: its mean or its variance is read")
    return [node]


def _only_first_output(node: ir.Node, rejection: str) -> None:
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise CannotAdapt(rejection)
    node.resize_outputs(1)


@_upgrades(10, "Dropout")
@_upgrades(12, "Dropout")
def _dropout_of_inference(node: ir.Node) -> list[ir.Node]:
    """The operator was for inference and ignored its ratio. ONNX Runtime gives a mask of zeros before opset 12 and of ones since."""
    _only_first_output(node, "its mask is read, which is another one since opset 12")
    node.attributes.pop("ratio", None)
    return [node]


@_upgrades(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_of_one_axis(node: ir.Node) -> list[ir.Node]:
    """Older versions flatten the input to two dimensions at `axis` (default 1)."""
    attribute = node.attributes.pop("axis", None)
    axis = 1 if attribute is None else attribute.as_int()
    source, output = node.inputs[0], node.outputs[0]
    rank, shape = rank_of(source), static_shape(source)
    if rank is not None and not -rank <= axis < rank:
        raise CannotAdapt(f"its axis is {axis}, and its input has {rank} dimensions")
    if axis == -1 or (rank is not None and axis % rank == rank - 1):
        _set_default(node, "axis", -1)
        return [node]
    if rank is not None and shape is not None and all(size == 1 for size in shape[axis % rank + 1 :]):
        _set_default(node, "axis", axis % rank)
        return [node]
    build = Chain(node)
    whole = build.add("Shape", [source], "shape")
    whole.type = ir.TensorType(ir.DataType.INT64)
    flat = build.add("Flatten", [source], "flat", axis=axis)
    flat.type = source.type if source is not None else None
    last = ir.Node("", node.op_type, [flat], [ir.AttrInt64("axis", -1)], name=node.name, metadata_props=dict(node.metadata_props))
    last.outputs[0].name, last.outputs[0].type = f"{output.name}_by_row", output.type
    graph = node.graph
    assert graph is not None, "only nodes of graphs are adapted"
    graph.insert_before(node, last)
    back = replace_node(node, "Reshape", [last.outputs[0], whole])
    back.name = f"{last.name}_shape_back" if last.name else None
    return [*build.nodes, last, back]


@_upgrades(9, "Upsample")
def _upsample_scales_to_input(node: ir.Node) -> list[ir.Node]:
    scales = node.attributes.pop("scales", None)
    if scales is not None:
        _put(node, 1, np.array(scales.as_floats(), np.float32), "scales")
    return [node]


@_upgrades(10, "Upsample")
def _upsample_becomes_resize(node: ir.Node) -> list[ir.Node]:
    """Replaces Upsample by a Resize with explicit opset 11 attributes. Scales are at least 1, so no rule for downsampling is needed."""
    node.op_type = "Resize"
    _set_default(node, "coordinate_transformation_mode", "asymmetric")
    if _mode(node) == "nearest":
        _set_default(node, "nearest_mode", "floor")
    return [node]


def _mode(node: ir.Node) -> str:
    attribute = node.attributes.get("mode")
    return "nearest" if attribute is None else attribute.as_string()


@_upgrades(11, "Resize")
def _resize_says_its_coordinates(node: ir.Node) -> list[ir.Node]:
    """Coordinates started at the corner of the first pixel. The nearest pixel was the next lower one, or the next higher one when
    shrinking.
    """
    _set_default(node, "coordinate_transformation_mode", "asymmetric")
    if _mode(node) == "nearest" and "nearest_mode" not in node.attributes:
        _set_default(node, "nearest_mode", _rounding(node))
    scales = node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, new_constant(node, np.zeros(0, np.float32), "roi"))
    node.replace_input_with(2, scales)
    return [node]


def _rounding(node: ir.Node) -> str:
    value = node.inputs[1]
    tensor = None if value is None else value.const_value
    scales = constant_of(value) if tensor is None else tensor.numpy()
    if scales is None:
        raise CannotAdapt("its scales are computed, and mode 'nearest' rounds otherwise where they are below 1")
    if (scales >= 1).all():
        return "floor"
    if (scales <= 1).all():
        return "ceil"
    raise CannotAdapt("it shrinks some dimensions and stretches others: mode 'nearest' then rounded each in a way of its own")


@_upgrades(13, "Resize")
def _resize_without_tf_half_pixels(node: ir.Node) -> list[ir.Node]:
    """`tf_half_pixel_for_nn` no longer exists: its floor(x) equals rounding `half_pixel` coordinates with halves up."""
    mode = node.attributes.get("coordinate_transformation_mode")
    if mode is None or mode.as_string() != "tf_half_pixel_for_nn":
        return [node]
    nearest = node.attributes.get("nearest_mode")
    if _mode(node) != "nearest" or nearest is None or nearest.as_string() != "floor":
        raise CannotAdapt("opset 13 removed coordinate_transformation_mode 'tf_half_pixel_for_nn' for all but nearest_mode 'floor'")
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "half_pixel")
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "round_prefer_ceil")
    return [node]


@_upgrades(16, "RoiAlign")
def _roi_align_without_half_pixels(node: ir.Node) -> list[ir.Node]:
    _set_default(node, "coordinate_transformation_mode", "output_half_pixel")
    return [node]


@_upgrades(11, "Scatter")
def _scatter_elements(node: ir.Node) -> list[ir.Node]:
    node.op_type = "ScatterElements"
    return [node]


@_upgrades(20, "GridSample")
def _grid_sample_names(node: ir.Node) -> list[ir.Node]:
    names = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}
    mode = node.attributes.get("mode")
    node.attributes["mode"] = ir.AttrString("mode", names["bilinear" if mode is None else mode.as_string()])
    return [node]


@_upgrades(20, "DFT")
def _dft_axis_to_input(node: ir.Node) -> list[ir.Node]:
    axis = node.attributes.pop("axis", None)
    _put(node, 2, np.array(1 if axis is None else axis.as_int(), np.int64), "axis")
    return [node]


@_upgrades(21, "GroupNormalization")
def _group_normalization_by_channel(node: ir.Node) -> list[ir.Node]:
    """Scale and bias applied to a group; they now apply to a channel."""
    shape, groups = static_shape(node.inputs[0]), node.attributes.get_int("num_groups", 0)
    rank = rank_of(node.inputs[0])
    channels = node.inputs[0].shape[1] if rank is not None and rank > 1 and node.inputs[0] is not None and node.inputs[0].shape else None
    if shape is not None:
        channels = shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise CannotAdapt("the number of its channels is not known")
    build = Chain(node)
    column = new_constant(node, np.array([groups, 1], np.int64), "column")
    wide = new_constant(node, np.array([groups, channels // groups], np.int64), "wide")
    row = new_constant(node, np.array([channels], np.int64), "row")
    for index, role in ((1, "scale"), (2, "bias")):
        value = build.add("Reshape", [node.inputs[index], column], f"{role}_column")
        value = build.add("Expand", [value, wide], f"{role}_wide")
        node.replace_input_with(index, build.add("Reshape", [value, row], role))
    return [*build.nodes, node]


@_upgrades(9, "Scan")
def _scan_each_row(node: ir.Node) -> list[ir.Node]:
    """Dimension 0 was the batch, and each row was scanned separately. The result is an outer scan over the rows that contains the original
    scan.
    """
    if node.inputs and node.inputs[0] is not None:
        raise CannotAdapt("its rows have lengths of their own ('sequence_lens'), which opset 9 removed")
    graph, body = node.graph, node.attributes.get("body")
    assert graph is not None, "only nodes of graphs are adapted"
    assert body is not None, "ONNX's checker was asked"
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    label = node.outputs[0].name
    rows = [_row(value, unused_name(graph, f"{label}_row{at}")) for at, value in enumerate(node.inputs[1:]) if value is not None]
    results = [_row(value, unused_name(graph, f"{label}_result{at}")) for at, value in enumerate(node.outputs)]
    attributes: dict[str, Any] = {"body": body.as_graph(), "num_scan_inputs": scanned}
    directions = node.attributes.get("directions")
    if directions is not None:
        attributes["scan_input_directions"] = list(directions.as_ints())
    given = list(node.inputs[1:])
    node.attributes.pop("body")
    inner = ir.Node("", "Scan", rows, ir.convenience.convert_attributes(attributes), outputs=results, name=node.name)
    outer = ir.Graph(rows, results, nodes=[inner], name=f"{label}_rows")
    replaced = replace_node(node, "Scan", given, {"body": outer, "num_scan_inputs": len(given)})
    return [replaced, inner]


def _row(value: ir.Value, name: str) -> ir.Value:
    """Returns a value for one row of `value`, whose dimension 0 is the batch."""
    shape = None if value.shape is None or not len(value.shape) else ir.Shape(list(value.shape)[1:])
    return ir.Value(name=name, shape=shape, type=value.type)
