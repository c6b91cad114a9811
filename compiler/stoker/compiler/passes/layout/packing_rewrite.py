"""Turns a padded transformer into a packed one, using the analysis of `packing_rules`."""

from collections.abc import Callable
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import PassError
from stoker.compiler.passes.edit import constant_of, describe, is_op, producer_of, static_shape
from stoker.compiler.passes.layout.packing_axes import Factor, Layout, Role, aligned, find, is_copies, length, roles, roles_in
from stoker.compiler.passes.layout.packing_index import PackIndex, PackingNodes, PackSizes, inverse
from stoker.compiler.passes.layout.packing_rules import Selection, TokenGraph
from stoker.compiler.passes.matching.editing import GraphEditor

#: Added to masked scores, as in BERT. Its exponential is 0 in every precision, and FP16 can represent it.
MASKED_SCORE = -10000.0


class PackedGraph:
    """One model on its way. REQUIRES: `tokens` was read from this graph, and nothing changed it since."""

    def __init__(
        self,
        editor: GraphEditor,
        graph: ir.Graph,
        tokens: TokenGraph,
        sizes: PackSizes,
        *,
        first: ir.Node,
        numbers: ir.Value,
        positions: Callable[[], ir.Value],
        places: Callable[[], ir.Value],
    ) -> None:
        """Takes the model.

        Args:
            editor: Of the model.
            graph: The graph, changed in place.
            tokens: Analysis of the graph.
            sizes: Sizes of the packed model.
            first: What is made from inputs alone goes in front of this node, the first of the model's own.
            numbers: int32 [rows, row_length]: the number of each token's sequence in the batch, from 1; 0 where there is no token.
            positions: Gives int32 [rows, row_length]: each token's place in its sequence; called only if the model needs it.
            places: Gives int32 [sequences, 2]: row and offset of each sequence; called only if the model needs it.
        """
        self._editor = editor
        self._graph = graph
        self._first = first
        self._tokens = tokens
        self._layouts = tokens.layouts
        self._sizes = sizes
        self._nodes = PackingNodes(editor)
        self._index = PackIndex(self._nodes, first, sizes, numbers, places)
        self._numbers, self._positions = numbers, positions
        self._rows = [sizes.rows, sizes.row_length]
        self._made: dict[object, ir.Value] = {}
        #: Values by sequence, [sequences, segment, ...], if attention is done sequence by sequence.
        self._segmented: set[ir.Value] = set()

    def rewrite(self) -> None:
        """Runs all steps.

        Raises:
            PassError: something in the model differs by token in a way that cannot be packed; names the node.
        """
        if self._sizes.segment:
            self._segmented = {
                value for value, layout in self._layouts.items() if Role.KEY in roles_in(layout) and value.producer() is not None
            }
        for node, number, axes in self._tokens.constants:
            self._constant(node, number, axes)
        if self._sizes.segment:
            self._attend_by_sequence()
        else:
            self._attend_by_row()
        for node in self._tokens.sums:
            self._sum_by_sequence(node)
        for selection in self._tokens.selections:
            self._select(selection)
        self._resize()

    # Constants that differ by token ------------------------------------------------------------------------------------------------------

    def _constant(self, node: ir.Node, number: int, axes: tuple[int, ...]) -> None:
        value = node.inputs[number]
        layout = self._layouts[node.outputs[0]]
        array = _constant_or_fill(value)
        if value is None or array is None or is_op(node, "MatMul"):
            raise PassError(f"packed_transformer: {describe(node)}: input {number} differs by token, and is no constant that can be packed")
        whole = array.reshape((1,) * (len(layout) - array.ndim) + array.shape)
        for axis in axes:
            head = np.take(whole, [0], axis)
            if np.array_equal(np.broadcast_to(head, whole.shape), whole):
                whole = head
        left = [axis for axis in axes if whole.shape[axis] > 1]
        if any(roles(layout[axis]) not in ({Role.TOKEN}, {Role.KEY}) for axis in left):
            raise PassError(f"packed_transformer: {describe(node)}: constant '{value.name}' differs by row of the batch")
        if node.outputs[0] in self._segmented:
            cut = tuple(slice(0, self._sizes.segment) if axis in left else slice(None) for axis in range(whole.ndim))
            made = self._editor.constant(node, whole[cut], f"{value.name}/segment")
        elif len(left) == 1:
            made = self._by_position(node, value, whole, left[0], layout)
        elif len(left) == 2 and _is_relative(whole, left[0], left[1]):
            return
        elif left:
            raise PassError(
                f"packed_transformer: {describe(node)}: constant '{value.name}' differs by pairs of tokens, and not only by their distance"
            )
        else:
            made = self._editor.constant(node, whole, f"{value.name}/row")
        node.replace_input_with(number, made)

    def _by_position(self, node: ir.Node, value: ir.Value, whole: NDArray[np.generic], axis: int, layout: Layout) -> ir.Value:
        """Returns the entries of a constant for each token's position, in the dimensions of `layout`."""
        row = find(layout, Role.ROW)
        if row is None:
            raise PassError(f"packed_transformer: {describe(node)}: constant '{value.name}' differs by token, where rows are no dimension")
        key = (value, row, axis)
        if key not in self._made:
            rest = [each for each in range(whole.ndim) if each not in (row, axis)]
            table = np.ascontiguousarray(whole.transpose([axis, row, *rest])[:, 0])
            chosen = self._editor.insert(
                self._first,
                "Gather",
                [self._editor.constant(self._first, table, f"{value.name}/by_position"), self._positions()],
                attributes={"axis": 0},
                name=f"{value.name}/Gather",
                dtype=value.dtype or ir.DataType.from_numpy(table.dtype),
                shape=[*self._rows, *table.shape[1:]],
            )
            sizes = [*self._rows, *table.shape[1:]]
            self._made[key] = self._nodes.transposed(self._first, chosen, inverse([row, axis, *rest]), sizes)
        return self._made[key]

    # Attention within rows ---------------------------------------------------------------------------------------------------------------

    def _attend_by_row(self) -> None:
        for node, number in self._tokens.keyed:
            mask = node.inputs[number]
            if is_op(node, "Add") and mask is not None:
                node.replace_input_with(number, self._masked_by_row(node, mask))
        for softmax, is_masked in self._tokens.softmaxes.items():
            scores = softmax.inputs[0]
            if not is_masked and scores is not None:
                zero = self._editor.constant(softmax, np.zeros((), _float(scores)), "packing/zero")
                bias = self._masked_by_row(softmax, zero, like=scores, key="bias")
                softmax.replace_input_with(0, self._editor.insert(softmax, "Add", [scores, bias], like=scores))

    def _masked_by_row(self, node: ir.Node, mask: ir.Value, *, like: ir.Value | None = None, key: object = None) -> ir.Value:
        """Returns `mask` plus `MASKED_SCORE` between tokens of different sequences."""
        layout = self._layouts[node.outputs[0]]
        same = self._same_sequence(node, layout)
        cache = ("mask", key or mask, same, _float(like or mask))
        if cache not in self._made:
            low = self._editor.constant(node, np.asarray(MASKED_SCORE, _float(like or mask)), "packing/masked")
            made = self._editor.insert(node, "Where", [same, mask, low], name=f"{node.name}/own_sequence", dtype=(like or mask).dtype)
            self._made[cache] = made
            sizes = [length(axis) if roles(axis) else 1 for axis in layout]
            given = [1] * len(layout) if like is not None else [length(axis) for axis in aligned(self._layouts[mask], len(layout))]
            made.shape = ir.Shape([max(pair) for pair in zip(sizes, given, strict=True)])
        return self._made[cache]

    def _same_sequence(self, node: ir.Node, layout: Layout) -> ir.Value:
        """Returns bool, in the dimensions of the scores: whether token and key belong to the same sequence."""
        row, token, key = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN, Role.KEY))
        cache = ("same", row, token, key, len(layout))
        if cache not in self._made:
            sides = []
            for axis in (token, key):
                shape = [1] * len(layout)
                shape[row], shape[axis] = self._sizes.rows, self._sizes.row_length
                if row > axis:
                    raise PassError(f"packed_transformer: {describe(node)}: tokens come before rows in its dimensions")
                sides.append(self._nodes.reshaped(self._first, self._numbers, shape))
            shape[token] = self._sizes.row_length
            self._made[cache] = self._editor.insert(
                self._first, "Equal", sides, name="packing/same_sequence", dtype=ir.DataType.BOOL, shape=shape
            )
        return self._made[cache]

    # Attention sequence by sequence ------------------------------------------------------------------------------------------------------

    def _attend_by_sequence(self) -> None:
        contexts = set(self._tokens.contexts)
        for node in list(self._graph):
            if node not in contexts and not any(value in self._segmented for value in node.outputs):
                continue
            for number, value in enumerate(node.inputs):
                if value is not None and value in self._layouts and value not in self._segmented:
                    node.replace_input_with(number, self._unpacked(node, value))
        for softmax in self._tokens.softmaxes:
            scores = softmax.inputs[0]
            if scores is not None:
                bias = self._beyond_sequence(softmax, scores)
                added = self._editor.insert(softmax, "Add", [scores, bias], like=scores)
                self._layouts[added] = self._layouts[scores]
                self._segmented.add(added)
                softmax.replace_input_with(0, added)
        for node in contexts:
            self._repack(node)

    def _unpacked(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """Returns `value` by sequence: rows become sequences, and the token dimension holds the tokens of each sequence."""
        key = ("unpacked", value)
        if key not in self._made:
            layout = self._layouts[value]
            row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
            sizes = [length(axis) for axis in layout]
            for axis in (axis for axis, factors in enumerate(layout) if is_copies(factors) and sizes[axis] > 1):
                one = self._editor.constant(node, np.zeros(1, np.int64), "packing/one_copy")
                sizes[axis] = 1
                value = self._editor.insert(node, "Gather", [value, one], attributes={"axis": axis}, dtype=value.dtype, shape=sizes)
            segments = [self._sizes.sequences, self._sizes.segment]
            self._made[key] = self._nodes.chosen(node, value, sizes, row, token, self._index.tokens(), segments)
        return self._made[key]

    def _repack(self, node: ir.Node) -> None:
        """Returns the result of attention by row."""
        output = node.outputs[0]
        layout = self._layouts[output]
        row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
        sizes = [length(axis) for axis in layout]
        sizes[row], sizes[token] = self._sizes.sequences, self._sizes.segment
        by_row = self._editor.insert_after(node, output, "Identity", name=f"{node.name}/by_row")
        self._layouts[by_row] = layout
        output.shape = ir.Shape(sizes)
        reader = by_row.producer()
        assert reader is not None, "the node was just made"
        packed = self._nodes.chosen(reader, output, sizes, row, token, self._index.segments(), self._rows)
        reader.replace_input_with(0, packed)

    def _beyond_sequence(self, node: ir.Node, scores: ir.Value) -> ir.Value:
        """Returns `MASKED_SCORE` for keys after the end of a sequence, in the dimensions of the scores."""
        layout = self._layouts[node.outputs[0]]
        row, key = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.KEY))
        cache = ("beyond", row, key, len(layout), scores.dtype)
        if cache not in self._made:
            sizes, first = self._sizes, self._first
            shape = [1] * len(layout)
            shape[row], shape[key] = sizes.sequences, sizes.segment
            own = self._nodes.reshaped(first, self._index.is_own(), shape)
            zero, low = (self._editor.constant(first, np.asarray(number, _float(scores)), "packing/bias") for number in (0.0, MASKED_SCORE))
            self._made[cache] = self._editor.insert(
                first, "Where", [own, zero, low], name="packing/beyond_sequence", dtype=scores.dtype, shape=shape
            )
        return self._made[cache]

    # Sums over the tokens before ---------------------------------------------------------------------------------------------------------

    def _sum_by_sequence(self, node: ir.Node) -> None:
        """Running sums begin anew with each sequence: over all tokens of the batch, less what came before the sequence."""
        value, editor = node.inputs[0], self._editor
        assert value is not None, "a sum has something to sum up"
        flat = self._nodes.reshaped(node, value, [self._sizes.tokens])
        axis = editor.constant(node, np.asarray(0, np.int64), "packing/axis")
        running = editor.insert(node, "CumSum", [flat, axis], like=flat)
        before = editor.insert(node, "Sub", [running, flat], like=flat)
        base = editor.insert(node, "Gather", [before, self._index.begins()], attributes={"axis": 0}, dtype=value.dtype, shape=self._rows)
        own = editor.insert(node, "Sub", [self._nodes.reshaped(node, running, self._rows), base], like=base)
        # What is no token gets 0 and not some large number: the sum may well be an index.
        none = editor.constant(node, np.asarray(0, np.int32), "packing/no_token")
        is_token = editor.insert(node, "Greater", [self._numbers, none], dtype=ir.DataType.BOOL, shape=self._rows)
        zero = editor.constant(node, np.zeros((), (value.dtype or ir.DataType.INT32).numpy()), "packing/zero")
        result = editor.insert(node, "Where", [is_token, own, zero], like=base)
        self._layouts[result] = self._layouts[node.outputs[0]]
        editor.replace(node.outputs[0], result)
        editor.remove_dead(node)

    # The first token of each sequence ----------------------------------------------------------------------------------------------------

    def _select(self, selection: Selection) -> None:
        node, value = selection.node, selection.node.inputs[0]
        assert value is not None, "a node that chooses tokens has something to choose from"
        layout = self._layouts[value]
        row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
        sizes = [length(axis) for axis in layout]
        chosen = self._nodes.chosen(node, value, sizes, row, token, self._index.starts(), [self._sizes.sequences])
        if selection.keeps_axis:
            sizes[row], sizes[token] = self._sizes.sequences, 1
            chosen = self._nodes.reshaped(node, chosen, sizes)
        old = node.outputs[0]
        self._layouts[chosen] = self._layouts[old]
        self._editor.replace(old, chosen)
        self._editor.remove_dead(node)

    # Sizes -------------------------------------------------------------------------------------------------------------------------------

    def _resize(self) -> None:
        """Sets the new shape of every value, and the new targets of Reshape and Expand."""
        for node in list(self._graph):
            for output in node.outputs:
                layout = self._layouts.get(output)
                if layout is None or not (output in self._segmented or Role.SEQUENCE in roles_in(layout)):
                    continue
                shape = [prod(self._new_size(factor, output in self._segmented) for factor in axis) for axis in layout]
                output.shape = ir.Shape(shape)
                if is_op(node, "Reshape", "Expand"):
                    node.replace_input_with(1, self._editor.constant(node, np.asarray(shape, np.int64), f"{output.name}/packed_shape"))

    def _new_size(self, factor: Factor, is_segmented: bool) -> int:
        if factor.role is Role.SEQUENCE or (is_segmented and factor.role is Role.ROW):
            return self._sizes.sequences
        if is_segmented and factor.role in (Role.TOKEN, Role.KEY):
            return self._sizes.segment
        return factor.size

    def _own_axis(self, node: ir.Node, layout: Layout, role: Role) -> int:
        axis = find(layout, role)
        if axis is None:
            raise PassError(
                f"packed_transformer: {describe(node)}: {role.value}s are not a dimension of their own, so sequences cannot be separated"
            )
        return axis


def _float(value: ir.Value) -> np.dtype[np.generic]:
    return (value.dtype or ir.DataType.FLOAT).numpy()


def _constant_or_fill(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Returns a constant, or the output of ConstantOfShape: constant folding keeps that operator where its output is large."""
    fill, shape = producer_of(value, "ConstantOfShape"), static_shape(value)
    if fill is None or shape is None:
        return constant_of(value)
    number = fill.attributes.get("value")
    return np.broadcast_to(np.zeros(1, np.float32) if number is None else number.as_tensor().numpy(), shape)


def _is_relative(array: NDArray[np.generic], first: int, second: int) -> bool:
    """Returns whether entries depend only on the difference of two positions, such as in a causal mask or in relative positions."""
    moved = np.moveaxis(array, (first, second), (0, 1))
    return bool(np.array_equal(moved[1:, 1:], moved[:-1, :-1]))
