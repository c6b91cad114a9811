"""`compress_pattern`: Compress, whose result has as many rows as the data says, gets a static form."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("compress_pattern")
class CompressPattern(Pass):
    """Replaces Compress, whose output shape depends on data, by operators of static shape (upstream: the MaskCompress operator).

    With a constant condition it becomes a Gather, exactly. With a computed one the result has the full size: first the rows that were
    chosen, in their order, then rows of zeros. Those first rows are exactly the source model's result, whose size the device cannot have;
    whoever reads it must expect the rest. Off unless asked for.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Compress")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
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
    """Gathers rows in the order of a stable sort of the condition, and zeroes those that were not chosen."""
    given, size = static_shape(condition), shape[axis]
    if given is None or not 0 < given[0] <= size or data.dtype is None:
        return False
    count = given[0]
    label = node.name or "Compress"
    # Sorting keys: chosen rows count down from 2 * count, the others from count, so that each keeps its place among its kind.
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
