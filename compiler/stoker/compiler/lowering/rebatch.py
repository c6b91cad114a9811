"""Gives a converted model with fixed shapes another batch size, so that it can be planned for several without further conversions.

Only shapes change, and the constants that hold them (targets of Reshape and Expand, sizes of Resize); weights are never read. The result is
planned, never run.
"""

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import CompileError, ShapeError
from stoker.compiler.lowering.typed_graph import infer_types

#: Operators with a shape as input, and the index of this input.
_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3}
#: Operators whose output depends on a tensor's shape only, not on its data.
_SHAPE_READERS = frozenset({"Shape", "Size"})


def rebatch(model: ir.Model, *, axis: int, old: int, new: int) -> None:
    """Gives inputs and outputs `new` rows in dimension `axis`, where they have `old`, and infers the shapes between, in place.

    Raises:
        ShapeError: a shape inside the model depends on the batch in an unknown way.
    """
    if old == new:
        return
    batched = {value for value in model.graph.inputs if _has_rows(value, axis, old)}
    for value in batched:
        value.shape = ir.Shape([new if at == axis else size for at, size in enumerate(value.shape or ())])
    for node in model.graph:
        is_batched = node.op_type not in _SHAPE_READERS and any(value in batched for value in node.inputs)
        if node.op_type in _SHAPE_INPUTS:
            is_batched = _set_target(node, _SHAPE_INPUTS[node.op_type], old, new, is_batched=is_batched) or is_batched
        for output in node.outputs:
            if is_batched:
                batched.add(output)
            if output.const_value is None:
                output.shape = None
    try:
        infer_types(model)
    except CompileError as error:
        raise ShapeError(f"batch size {new} cannot be planned: {error}") from error
    for value in model.graph.outputs:
        if not _has_rows(value, axis, new):
            raise ShapeError(f"batch size {new} cannot be planned: output '{value.name}' would have shape {value.shape}")


def _has_rows(value: ir.Value, axis: int, rows: int) -> bool:
    return value.shape is not None and axis < len(value.shape) and value.shape[axis] == rows


def _set_target(node: ir.Node, index: int, old: int, new: int, *, is_batched: bool) -> bool:
    """Scales the leading size in the shape input of `node`, if it is the batch; returns whether it is."""
    value = node.inputs[index] if len(node.inputs) > index else None
    constant = None if value is None else ir.convenience.get_const_tensor(value)
    if value is None or constant is None or constant.size == 0:
        return False
    sizes = np.array(constant.numpy())
    # Before a tensor that has no rows itself, such as a token that is repeated for each row, only the exact number can be the batch.
    if sizes[0] < 1 or (sizes[0] % old if is_batched else sizes[0] != old or old == 1):
        return False
    sizes[0] = sizes[0] // old * new
    name = f"{value.name}/rows_{new}/{node.outputs[0].name}"
    changed = ir.Value(name=name, shape=ir.Shape(sizes.shape), type=ir.TensorType(constant.dtype), const_value=ir.Tensor(sizes, name=name))
    if node.graph is not None:
        node.graph.register_initializer(changed)
    node.replace_input_with(index, changed)
    return True
