"""Passes for operators whose shapes depend on data, or that enlarge tensors."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, rank_of, static_shape
from stoker.compiler.passes.matching.edges import reader_of, scalar_of, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import rewrite_pass


@rewrite_pass("Compress")
def compress_pattern(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Compress, whose output shape depends on data, by operators of static shape (upstream: the MaskCompress operator).

    With a constant condition it becomes a Gather, exactly. With a computed one the result has the full size: first the rows that were
    chosen, in their order, then rows of zeros. Those first rows are exactly the source model's result, whose size the device cannot have;
    whoever reads it must expect the rest. Off unless asked for.
    """
    data, condition = node.inputs[0], node.inputs[1]
    shape = static_shape(data)
    if data is None or condition is None or shape is None:
        return False
    attribute = node.attributes.get("axis")
    axis = 0 if attribute is None else attribute.as_int() % len(shape)
    if attribute is None and len(shape) != 1:
        shape = (int(np.prod(shape, dtype=np.int64)),)
        flat = editor.constant(node, np.array([-1]), f"{node.name or 'Compress'}/flat")
        data = editor.insert(node, "Reshape", [data, flat], dtype=data.dtype, shape=shape)
    chosen = constant_of(condition)
    if chosen is not None:
        rows = editor.constant(node, np.flatnonzero(chosen).astype(np.int64), f"{node.name or 'Compress'}/rows")
        result = editor.insert(node, "Gather", [data, rows], attributes={"axis": axis}, like=node.outputs[0], dtype=data.dtype)
        editor.replace(node.outputs[0], result)
    elif not _replace_computed(editor, node, data, condition, shape, axis):
        return False
    editor.remove_dead(node)
    return True


def _replace_computed(editor: GraphEditor, node: ir.Node, data: ir.Value, condition: ir.Value, shape: tuple[int, ...], axis: int) -> bool:
    """Gathers the rows in the order of a stable sort of the condition, and sets the unselected rows to zero."""
    given, size = static_shape(condition), shape[axis]
    if given is None or not 0 < given[0] <= size or data.dtype is None:
        return False
    count = given[0]
    label = node.name or "Compress"
    # Sort keys: selected rows count down from 2 * count, the others from count, so both keep their relative order.
    downwards = editor.constant(node, np.arange(count, 0, -1, dtype=np.int32), f"{label}/places")
    bonus = editor.constant(node, np.array(count, np.int32), f"{label}/bonus")
    number = editor.insert(node, "Cast", [condition], attributes={"to": ir.DataType.INT32.value}, dtype=ir.DataType.INT32, shape=[count])
    raised = editor.insert(node, "Mul", [number, bonus], like=number)
    keys = editor.insert(node, "Add", [raised, downwards], like=number)
    amount = editor.constant(node, np.array([count]), f"{label}/count")
    _, order = editor.insert_many(node, "TopK", [keys, amount], dtypes=[ir.DataType.INT32, ir.DataType.INT64], shapes=[[count]] * 2)
    rows = editor.insert(
        node, "Gather", [data, order], attributes={"axis": axis}, dtype=data.dtype, shape=[*shape[:axis], count, *shape[axis + 1 :]]
    )
    kept = editor.insert(node, "Gather", [condition, order], attributes={"axis": 0}, like=condition)
    wide = editor.constant(node, np.array([count] + [1] * (len(shape) - axis - 1)), f"{label}/mask_shape")
    mask = editor.insert(node, "Reshape", [kept, wide], dtype=ir.DataType.BOOL)
    zero = editor.constant(node, np.zeros((), data.dtype.numpy()), f"{label}/zero")
    result = editor.insert(node, "Where", [mask, rows, zero], like=rows)
    node.outputs[0].shape = result.shape
    editor.replace(node.outputs[0], result)
    return True


_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less", "And", "Or")


@rewrite_pass("Expand", "Tile")
def post_expand(editor: GraphEditor, expand: ir.Node) -> bool:
    """Moves an Expand (or Tile) behind the element by element operators that read it, so that they run on the smaller tensor. Exact.

    Operators of one input, and those of two whose other input is one constant number. The Expand must be read by that operator alone.
    Upstream documents no more of this pass than its name.
    """
    small, sizes = expand.inputs[0], expand.inputs[1]
    changed = False
    while small is not None and (reader := reader_of(expand.outputs[0], *_UNARY, *_BINARY)) is not None:
        inputs = _inputs_on(reader, expand.outputs[0], small)
        if inputs is None:
            break
        done = editor.insert(
            expand,
            reader.op_type,
            inputs,
            attributes={name: attribute.value for name, attribute in reader.attributes.items()},
            name=reader.name,
            like=small,
            dtype=reader.outputs[0].dtype,
            metadata=reader.metadata_props,
        )
        whole = editor.insert(reader, expand.op_type, [done, sizes], name=expand.name, like=reader.outputs[0])
        editor.replace(reader.outputs[0], whole)
        editor.remove_dead(reader)
        moved = whole.producer()
        assert moved is not None
        expand, small, changed = moved, done, True
    return changed


def _inputs_on(reader: ir.Node, large: ir.Value, small: ir.Value) -> list[ir.Value | None] | None:
    """Returns the inputs of `reader` with `small` instead of `large`; None if it does not work element by element."""
    if is_op(reader, *_BINARY):
        parts = split_constant(reader)
        if parts is None or scalar_of(parts[1]) is None or (rank_of(parts[1]) or 0) > (rank_of(small) or 0):
            return None
    return [small if value is large else value for value in reader.inputs]
