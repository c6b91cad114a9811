"""`expand_if`: both branches of a small choice are computed, and the result is selected."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor, graph_of
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

#: Types that ONNX Runtime's Where takes (FP16 through a cast of its own); booleans are selected with And and Or.
_SELECTABLE = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)

#: Operators that fail on some values, or take as long as the data says; the branch that is not taken must not meet such values.
_UNSAFE = frozenset(
    {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter", "Mod", "Loop", "Scan", "Compress", "NonZero"}
)
_TAKES_A_SHAPE = frozenset({"Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "ConstantOfShape"})


@register("expand_if")
class ExpandIf(Pass):
    """Replaces an If by both its branches and a selection of their results, so that no control flow is left. Exact.

    Both branches then run every time: worth it where they are small. It is done only where each pair of results has one known shape and a
    type that can be selected, and where no operator of a branch can fail on data meant for the other (indices, divisions of integers,
    shapes that are computed).
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _expand, "If")


def _expand(editor: GraphEditor, node: ir.Node) -> bool:
    then_branch, else_branch = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    condition = node.inputs[0]
    if condition is None or not all(_is_safe(each) for branch in (then_branch, else_branch) for each in branch.all_nodes()):
        return False
    pairs = list(zip(then_branch.outputs, else_branch.outputs, strict=True))
    if not all(_can_select(chosen, other) for chosen, other in pairs):
        return False
    if static_shape(condition) != ():
        no_dims = editor.constant(node, np.zeros(0, np.int64), f"{node.name or 'If'}/scalar_shape")
        condition = editor.insert(node, "Reshape", [condition, no_dims], dtype=ir.DataType.BOOL, shape=[])
    chosen = _inline(editor, node, then_branch)
    others = _inline(editor, node, else_branch)
    for output, first, second in zip(node.outputs, chosen, others, strict=True):
        editor.replace(output, _select(editor, node, condition, first, second))
    editor.remove_dead(node)
    return True


def _is_safe(node: ir.Node) -> bool:
    if node.op_type in _UNSAFE or (node.domain != "" and node.domain != "com.microsoft"):
        return False
    if is_op(node, "Div"):
        return node.outputs[0].dtype is not None and node.outputs[0].dtype.is_floating_point()
    if node.op_type in _TAKES_A_SHAPE:
        return all(value is None or constant_of(value) is not None for value in node.inputs[1:])
    return True


def _can_select(first: ir.Value, second: ir.Value) -> bool:
    shape = static_shape(first)
    return (
        shape is not None
        and shape == static_shape(second)
        and first.dtype is second.dtype
        and (first.dtype in _SELECTABLE or first.dtype is ir.DataType.BOOL)
    )


def _inline(editor: GraphEditor, node: ir.Node, branch: ir.Graph) -> Sequence[ir.Value]:
    """Moves the nodes and constants of `branch` in front of `node`, with fresh names; returns its results."""
    results = list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        array = constant_of(value)
        assert array is not None, "an initialiser of a branch has a value"
        moved = editor.constant(node, array, str(value.name))
        value.replace_all_uses_with(moved)
        results = [moved if result is value else result for result in results]
        del branch.initializers[str(value.name)]
    nodes = list(branch)
    branch.remove(nodes)
    for each in nodes:
        for output in each.outputs:
            if output.name:
                output.name = editor.fresh_name(output.name)
    graph_of(node).insert_before(node, nodes)
    return results


def _select(editor: GraphEditor, node: ir.Node, condition: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
    if first.dtype is not ir.DataType.BOOL:
        return editor.insert(node, "Where", [condition, first, second], like=first)
    otherwise = editor.insert(node, "Not", [condition], like=condition)
    taken = editor.insert(node, "And", [condition, first], like=first)
    left = editor.insert(node, "And", [otherwise, second], like=first)
    return editor.insert(node, "Or", [taken, left], like=first)
