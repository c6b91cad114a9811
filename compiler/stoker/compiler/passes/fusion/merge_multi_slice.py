"""`merge_multi_slice`: slices that together take a tensor apart become one Split."""

from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_ints, input_at, is_op, static_shape
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs


@dataclass(frozen=True, slots=True)
class _Range:
    """Indices `start` to `end` of dimension `axis`, taken by `node`."""

    node: ir.Node
    axis: int
    start: int
    end: int


@register("merge_multi_slice")
class MergeMultiSlice(Pass):
    """Replaces Slice nodes that cut one tensor along one dimension into all its parts, without overlap, by one Split. Exact.

    The bounds must be constants, the steps 1, the size of the dimension known, and the ranges must cover it whole; ranges taken by several
    nodes are taken once.
    """

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        changed = False
        for graph in list(traverse_graphs(model)):
            groups: dict[tuple[ir.Value, int], list[_Range]] = {}
            for node in graph:
                found = _range_of(node) if is_op(node, "Slice") else None
                if found is not None and node.inputs[0] is not None:
                    groups.setdefault((node.inputs[0], found.axis), []).append(found)
            for (value, axis), ranges in groups.items():
                changed |= _merge(editor, value, axis, ranges)
        return changed


def _range_of(node: ir.Node) -> _Range | None:
    shape = static_shape(node.inputs[0])
    starts, ends = constant_ints(input_at(node, 1)), constant_ints(input_at(node, 2))
    axes, steps = input_at(node, 3), input_at(node, 4)
    if shape is None or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    axis = [0] if axes is None else constant_ints(axes)
    if axis is None or (steps is not None and constant_ints(steps) != [1]):
        return None
    position = axis[0] % len(shape)
    size = shape[position]
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (starts[0], ends[0]))
    return _Range(node, position, start, end) if start < end else None


def _merge(editor: GraphEditor, value: ir.Value, axis: int, ranges: list[_Range]) -> bool:
    shape = static_shape(value)
    parts = sorted({(each.start, each.end) for each in ranges})
    ends = [0, *(end for _, end in parts)]
    if shape is None or len(parts) < 2 or [start for start, _ in parts] != ends[:-1] or ends[-1] != shape[axis]:
        return False
    sizes = [end - start for start, end in parts]
    shapes = [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]
    first = ranges[0].node  # in graph order
    outputs = editor.insert_split(first, value, sizes, axis, name=f"{first.name or 'Slice'}/Split", shapes=shapes)
    for part, output in zip(parts, outputs, strict=True):
        takers = [each.node for each in ranges if (each.start, each.end) == part]
        editor.replace(takers[0].outputs[0], output)
        for other in takers[1:]:
            editor.bypass(other.outputs[0], output)
    editor.remove_dead(*(each.node for each in ranges))
    return True
