"""Products and slices that read one input are made one: weights side by side, experts stacked, slices one Split.

`stack_branches`: sub-graphs of equal structure, computed as one with a new leading dimension. Each branch goes from inputs of its own to
one output. Where branches have constants of their own these are stacked, so that E products [M, K] x [K, N] become one product [E, M, K] x
[E, K, N]. Only operators that treat the leading dimensions one by one are understood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.passes.edit import constant_ints, constant_of, describe, input_at, is_op, only_use, static_shape, traverse_graphs
from stoker.compiler.passes.matching.edges import is_ancestor, other_input, split_constant, values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor, find_node, graph_of
from stoker.compiler.passes.registry import Pass, model_pass, register

#: Operators on single elements, or on the last two dimensions of each matrix, that broadcast their inputs.
STACKABLE = frozenset(
    {
        "MatMul", "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Greater", "Less", "Equal", "Not",
        "Relu", "LeakyRelu", "Elu", "Tanh", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Erf", "Gelu", "FastGelu",
        "Exp", "Log", "Sqrt", "Reciprocal", "Neg", "Abs", "Clip", "Cast", "Identity",
    }
)  # fmt: skip


class BranchStacker:
    """Builds the stacked form of corresponding values of several branches in front of one node.

    Args:
        editor: Editor of the model.
        before: The node in front of which new nodes are inserted.
        option: The user's option, for error texts.
        entries: Values where the branches begin; they are stacked without looking at their producers.
    """

    def __init__(self, editor: GraphEditor, before: ir.Node, *, option: str, entries: Sequence[tuple[ir.Value, ...]]) -> None:
        self._editor, self._before, self._option = editor, before, option
        self._entries = set(entries)
        self._done: dict[tuple[ir.Value, ...], ir.Value] = {}
        self._is_distinct = False

    def finish(self, outputs: Sequence[ir.Value]) -> None:
        """Stacks the nodes that compute `outputs` (one for each branch), and replaces each output by its slice of the stacked result.

        Raises:
            PassError: as `stack`; also where nothing differs between the branches, so that there is nothing to stack.
        """
        shapes = [static_shape(output) for output in outputs]
        whole = self.stack(tuple(outputs), len(shapes[0] or ()))
        if not self._is_distinct:
            raise PassError(f"{self._option}: the branches compute the same from the same; eliminate_duplicate_nodes merges them")
        split = [None if shape is None else [1, *shape] for shape in shapes]
        label = self._before.name or self._before.op_type
        rows = self._editor.insert_split(self._before, whole, [1] * len(outputs), 0, name=f"{label}/branches", shapes=split)
        axes = self._editor.constant(self._before, np.array([0]), f"{label}/branch_axis")
        for output, row in zip(outputs, rows, strict=True):
            self._editor.replace(output, self._editor.insert(self._before, "Squeeze", [row, axes], like=output))

    def stack(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        """Stacks the values of all branches along a new first dimension; `rank` is the rank of the values that they are combined with.

        Raises:
            PassError: the branches differ, or hold an operator that cannot be stacked; the text names the nodes.
        """
        if values not in self._done:
            self._done[values] = self._build(values, rank)
        return self._done[values]

    def _build(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        if values in self._entries:
            return self._stack_inputs(values)
        arrays = [constant_of(value) for value in values]
        if all(array is not None for array in arrays):
            return self._stack_constants(values, rank)
        nodes = [value.producer() for value in values]
        if any(node is None for node in nodes) or any(array is not None for array in arrays):
            names = ", ".join(f"'{value.name}'" for value in values)
            raise PassError(f"{self._option}: {names} correspond to each other, but not all of them are made by nodes of their branches")
        return self._stack_nodes([node for node in nodes if node is not None])

    def _stack_inputs(self, values: tuple[ir.Value, ...]) -> ir.Value:
        shapes = {static_shape(value) for value in values}
        if len(shapes) != 1 or None in shapes:
            names = ", ".join(f"'{value.name}' {value.shape}" for value in values)
            raise PassError(f"{self._option}: the branches' inputs must have one known shape; they are {names}")
        (shape,) = shapes
        assert shape is not None
        axes = self._editor.constant(self._before, np.array([0]), f"{self._before.name}/branch_axis")
        rows = [self._editor.insert(self._before, "Unsqueeze", [value, axes], dtype=value.dtype, shape=[1, *shape]) for value in values]
        if len(set(values)) == 1:
            return rows[0]  # one input for all branches: broadcasting suffices
        self._is_distinct = True
        return self._editor.insert(self._before, "Concat", rows, attributes={"axis": 0}, dtype=values[0].dtype, shape=[len(values), *shape])

    def _stack_constants(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        arrays = [array for value in values if (array := constant_of(value)) is not None]
        if len({(array.shape, array.dtype) for array in arrays}) != 1:
            names = ", ".join(f"'{value.name}' {array.dtype}{list(array.shape)}" for value, array in zip(values, arrays, strict=True))
            raise PassError(f"{self._option}: constants that correspond to each other must have one shape and type; they are {names}")
        if arrays[0].size == 1 and arrays[0].ndim <= 1 and all(array.tobytes() == arrays[0].tobytes() for array in arrays):
            return values[0]
        self._is_distinct = True
        whole = np.stack(arrays)
        whole = whole.reshape(len(arrays), *(1,) * (rank - arrays[0].ndim), *arrays[0].shape)
        return self._editor.constant(self._before, whole, f"{values[0].name}/stacked")

    def _stack_nodes(self, nodes: list[ir.Node]) -> ir.Value:
        first = nodes[0]
        for node in nodes:
            if node.op_type not in STACKABLE or len(node.outputs) != 1:
                raise PassError(f"{self._option}: {describe(node)} cannot be computed for several branches at once")
            if _signature(node) != _signature(first):
                raise PassError(f"{self._option}: {describe(node)} and {describe(first)} correspond to each other and differ")
        output = first.outputs[0]
        shape = static_shape(output)
        ranks = {len(known) for value in first.inputs if constant_of(value) is None and (known := static_shape(value)) is not None}
        if shape is None or ranks - {len(shape)} or (first.op_type == "MatMul" and len(shape) < 2):
            raise PassError(f"{self._option}: {describe(first)} must have known shapes, and operands of the same number of dimensions")
        inputs: list[ir.Value | None] = []
        for position in zip(*(_operands(node) for node in nodes), strict=True):
            present = tuple(value for value in position if value is not None)
            if present and len(present) != len(nodes):
                raise PassError(f"{self._option}: {describe(first)} has an input that its counterparts lack")
            inputs.append(self.stack(present, len(shape)) if present else None)
        return self._editor.insert(
            self._before,
            first.op_type,
            inputs,
            attributes={name: attribute.value for name, attribute in first.attributes.items()},
            domain=first.domain,
            name=f"{first.name or first.op_type}/merged",
            dtype=output.dtype,
            shape=[len(nodes), *shape],
            metadata=first.metadata_props,
        )


def _operands(node: ir.Node) -> Sequence[ir.Value | None]:
    """Returns the inputs. If their order does not matter and one is constant, the constant is last."""
    parts = split_constant(node) if node.op_type in ("Add", "Mul", "Max", "Min") else None
    return parts if parts is not None else node.inputs


def _signature(node: ir.Node) -> tuple[str, str, int, Mapping[str, object]]:
    return node.domain, node.op_type, len(node.inputs), {name: attribute.value for name, attribute in node.attributes.items()}


@dataclass(frozen=True, slots=True)
class Branch:
    """The nodes from `begin`, which reads the branch's input first, to `end`, which computes its output."""

    begin: ir.Node
    end: ir.Node


def parse_names(names: str | Sequence[str], *, option: str, each: int) -> list[str]:
    """Parses node names from a comma-separated text or a sequence, with `each` names per branch.

    Raises:
        OptionError: they are not at least two times `each`.
    """
    found = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
    if len(found) < 2 * each or len(found) % each:
        kind = "node names" if each == 1 else "pairs of node names"
        raise OptionError(f"{option}: at least two {kind} are needed, not {', '.join(found) or 'none'}")
    if len(set(found)) < len(found) and each == 1:
        raise OptionError(f"{option}: a node is named twice in {', '.join(found)}")
    return found


def find_branches(
    model: ir.Model, names: Sequence[str], *, option: str, op_types: Sequence[str] = (), ends: Sequence[str] = ()
) -> list[Branch]:
    """Finds branches by their consecutive (begin, end) names.

    Raises:
        PassError: a node is missing, is another operator, or stands in another graph; or a branch needs the result of another.
    """
    pairs = zip(names[::2], names[1::2], strict=True)
    branches = [
        Branch(find_node(model, begin, option=option, op_types=op_types), find_node(model, end, option=option, op_types=ends))
        for begin, end in pairs
    ]
    if len({branch.begin.graph for branch in branches} | {branch.end.graph for branch in branches}) != 1:
        raise PassError(f"{option}: {', '.join(names)} do not all stand in one graph")
    for branch in branches:
        if branch.begin is not branch.end and not is_ancestor(branch.begin, branch.end.inputs):
            raise PassError(f"{option}: {describe(branch.end)} does not depend on {describe(branch.begin)}")
        for other in branches:
            if other is not branch and is_ancestor(other.end, values_read_by(branch.begin)):
                raise PassError(f"{option}: {describe(branch.begin)} needs the result of {describe(other.end)}; they cannot run as one")
    return branches


def merge_by_stacking(editor: GraphEditor, branches: Sequence[Branch], *, option: str) -> None:
    """Computes all branches as one with a new leading dimension, and sorts the graph afterwards."""
    graph = graph_of(branches[0].begin)
    positions = {node: position for position, node in enumerate(graph)}
    last = max((branch.end for branch in branches), key=positions.__getitem__)
    entries = tuple(_input_of(branch.begin, option) for branch in branches)
    BranchStacker(editor, last, option=option, entries=[entries]).finish([branch.end.outputs[0] for branch in branches])
    editor.remove_dead(*(branch.end for branch in branches))
    graph.sort()


def merge_columns(editor: GraphEditor, matmuls: Sequence[ir.Node], biases: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> None:
    """Builds one MatMul (and Add) with the concatenated weights of all products, and a Split, in front of the first product.

    REQUIRES: `can_merge_columns`; `biases` are empty or constants that `is_column_bias` accepts.
    """
    graph = graph_of(matmuls[0])
    positions = {node: position for position, node in enumerate(graph)}
    first = min(matmuls, key=positions.__getitem__)
    label = f"{matmuls[0].name or 'MatMul'}/merged"
    weights = [array for node in matmuls if (array := constant_of(node.inputs[1])) is not None]
    widths = [array.shape[1] for array in weights]
    x, output = matmuls[0].inputs[0], outputs[0]
    shape = static_shape(output)
    whole_shape = None if shape is None else [*shape[:-1], sum(widths)]
    joined = editor.constant(first, np.concatenate(weights, axis=1), f"{label}/weights")
    marks = dict(matmuls[0].metadata_props)
    whole = editor.insert(first, "MatMul", [x, joined], name=label, dtype=output.dtype, shape=whole_shape, metadata=marks)
    if biases:
        rows = [np.broadcast_to(_row(bias), width) for bias, width in zip(biases, widths, strict=True)]
        offset = editor.constant(first, np.concatenate(rows), f"{label}/bias")
        whole = editor.insert(first, "Add", [whole, offset], name=f"{label}/Add", like=whole, metadata=marks)
    shapes = [None if shape is None else [*shape[:-1], width] for width in widths]
    for old, new in zip(outputs, editor.insert_split(first, whole, widths, -1, name=f"{label}/Split", shapes=shapes), strict=True):
        editor.replace(old, new)
    editor.remove_dead(*(node for output in outputs if (node := output.producer()) is not None), *matmuls)


def can_merge_columns(matmuls: Sequence[ir.Node]) -> bool:
    """Returns whether the products read one input and have constant matrices of equal type and height."""
    weights = [constant_of(node.inputs[1]) for node in matmuls]
    if len({node.inputs[0] for node in matmuls}) != 1 or any(array is None or array.ndim != 2 for array in weights):
        return False
    return len({(array.shape[0], array.dtype) for array in weights if array is not None}) == 1


def is_column_bias(bias: ir.Value | None, width: int) -> bool:
    """Returns whether `bias` is a constant with one number per column (or one for all)."""
    array = constant_of(bias)
    return array is not None and array.size in (1, width) and (array.size == 1 or array.shape[-1] == width)


def _row(bias: ir.Value) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    array = constant_of(bias)
    assert array is not None
    return array.reshape(-1)


def _input_of(begin: ir.Node, option: str) -> ir.Value:
    """Returns the only input of a branch's first node that is not constant."""
    found = [value for value in begin.inputs if value is not None and constant_of(value) is None]
    if len(found) != 1:
        raise PassError(f"{option}: {describe(begin)} must have exactly one input that is not constant; it has {len(found)}")
    return found[0]


@register("merge_matmul")
class MergeMatmul(Pass):
    """Merges named MatMul nodes: one large product uses the tiles better than several small ones.

    Products of one input get their weights side by side and a Split after them; products of different inputs of one shape, with weights of
    one shape, become one batched product. Tolerance is rounding: the order of summation may change with the size.

    Args:
        merge_matmul: Names of the nodes, at least two; a string may list them with commas.
    """

    def __init__(self, merge_matmul: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_matmul, option=self.name, each=1)

    def run(self, model: ir.Model) -> bool:
        doubled = [name for name in self._names for _ in range(2)]
        branches = find_branches(model, doubled, option=self.name, op_types=["MatMul"], ends=["MatMul"])
        editor = GraphEditor(model)
        nodes = [branch.begin for branch in branches]
        if can_merge_columns(nodes):
            merge_columns(editor, nodes, [], [node.outputs[0] for node in nodes])
        else:
            merge_by_stacking(editor, branches, option=self.name)
        return True


@register("merge_matmul_add")
class MergeMatmulAdd(Pass):
    """Merges named pairs of MatMul and Add as `merge_matmul` merges products, with their biases side by side or stacked.

    Args:
        merge_matmul_add: MatMul and Add of the first pair, of the second and so on; a string may list them with commas.
    """

    def __init__(self, merge_matmul_add: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_matmul_add, option=self.name, each=2)

    def run(self, model: ir.Model) -> bool:
        branches = find_branches(model, self._names, option=self.name, op_types=["MatMul"], ends=["Add"])
        editor = GraphEditor(model)
        biases = [_bias(branch) for branch in branches]
        known = [bias for bias in biases if bias is not None]
        matmuls = [branch.begin for branch in branches]
        if len(known) == len(branches) and can_merge_columns(matmuls):
            merge_columns(editor, matmuls, known, [branch.end.outputs[0] for branch in branches])
        else:
            merge_by_stacking(editor, branches, option=self.name)
        return True


def _bias(branch: Branch) -> ir.Value | None:
    """Returns the addend of the product, if it is a constant with one number per column and the Add is the product's only reader."""
    product = branch.begin.outputs[0]
    weights = static_shape(branch.begin.inputs[1])
    bias = other_input(branch.end, product)
    is_simple = only_use(product) is branch.end and weights is not None and is_column_bias(bias, weights[-1])
    return bias if is_simple else None


@register("merge_moe")
class MergeMoE(Pass):
    """Merges named experts of equal structure: their weights are stacked, and each operator runs once for all of them.

    An expert reaches from its first node to its last; in between stand products with constant weights, element by element arithmetic and
    activations. Experts may read one input or several of one shape. Tolerance is rounding.

    Args:
        merge_moe: First and last node of the first expert, of the second and so on; a string may list them with commas.
    """

    def __init__(self, merge_moe: str | Sequence[str] = ()) -> None:
        self._names = parse_names(merge_moe, option=self.name, each=2)

    def run(self, model: ir.Model) -> bool:
        branches = find_branches(model, self._names, option=self.name)
        merge_by_stacking(GraphEditor(model), branches, option=self.name)
        return True


@dataclass(frozen=True, slots=True)
class _Range:
    """A Slice: `node` takes the indices `start` to `end` of dimension `axis`."""

    node: ir.Node
    axis: int
    start: int
    end: int


@model_pass()
def merge_multi_slice(model: ir.Model) -> bool:
    """Replaces Slice nodes that cut one tensor along one dimension into all its parts, without overlap, by one Split. Exact.

    The bounds must be constants, the steps 1, the size of the dimension known, and the ranges must cover it whole; ranges taken by several
    nodes are taken once.
    """
    editor = GraphEditor(model)
    changed = False
    for graph in list(traverse_graphs(model)):
        groups: dict[tuple[ir.Value, int], list[_Range]] = {}
        for node in graph:
            found = _range_of(node) if is_op(node, "Slice") else None
            if found is not None and node.inputs[0] is not None:
                groups.setdefault((node.inputs[0], found.axis), []).append(found)
        for (value, axis), ranges in groups.items():
            changed |= _merge_slices(editor, value, axis, ranges)
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


def _merge_slices(editor: GraphEditor, value: ir.Value, axis: int, ranges: list[_Range]) -> bool:
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
