"""Makes a padded transformer a packed one, by what `packing_rules` found out about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from compiler.errors import PassError
from compiler.passes.edit import constant_of, describe, is_op
from compiler.passes.layout.packing_axes import Factor, Layout, Role, aligned, find, length, roles, roles_in
from compiler.passes.layout.packing_rules import Selection, TokenGraph
from compiler.passes.matching.editing import GraphEditor

#: Added to the scores of what a token must not attend to: BERT's own number. Its exponential is 0 in every precision, and FP16 holds it.
MASKED_SCORE = -10000.0


@dataclass(frozen=True, slots=True)
class PackSizes:
    """Sizes of a packed model.

    Attributes:
        rows, row_length: Of the batch, as the padded model had them.
        sequences: In a batch at most (`max_valid_num`).
        segment: Tokens that a sequence may have at most where attention is done sequence by sequence; 0: attention is done row by row.
    """

    rows: int
    row_length: int
    sequences: int
    segment: int = 0


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
            graph: Changed in place.
            tokens: What is known of it.
            sizes: What it is packed to.
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
        self._numbers, self._positions, self._places = numbers, positions, places
        self._made: dict[object, ir.Value] = {}
        #: Values by sequence, [sequences, segment, ...], where attention is done so.
        self._segmented: set[ir.Value] = set()

    def rewrite(self) -> None:
        """Does all of it.

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
        for selection in self._tokens.selections:
            self._select(selection)
        self._resize()

    # Constants that differ by token ------------------------------------------------------------------------------------------------------

    def _constant(self, node: ir.Node, number: int, axes: tuple[int, ...]) -> None:
        value = node.inputs[number]
        layout = self._layouts[node.outputs[0]]
        array = constant_of(value)
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
        """Entries of a constant chosen by each token's position, in the dimensions of `layout`."""
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
                shape=[self._sizes.rows, self._sizes.row_length, *table.shape[1:]],
            )
            self._made[key] = self._transposed(self._first, chosen, _inverse([row, axis, *rest]))
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
        """`mask`, and `MASKED_SCORE` between tokens of different sequences."""
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
        """Bool, in the dimensions of scores: whether token and key are of one sequence."""
        row, token, key = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN, Role.KEY))
        cache = ("same", row, token, key, len(layout))
        if cache not in self._made:
            sides = []
            for axis in (token, key):
                shape = [1] * len(layout)
                shape[row], shape[axis] = self._sizes.rows, self._sizes.row_length
                if row > axis:
                    raise PassError(f"packed_transformer: {describe(node)}: tokens come before rows in its dimensions")
                sides.append(self._reshaped(self._first, self._numbers, shape))
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
        """`value` by sequence: rows become sequences, and tokens those of each sequence, from its first."""
        key = ("unpacked", value)
        if key not in self._made:
            layout = self._layouts[value]
            row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
            self._made[key] = self._chosen(node, value, [length(axis) for axis in layout], row, token, self._token_index())
        return self._made[key]

    def _repack(self, node: ir.Node) -> None:
        """The result of attention by row again."""
        output = node.outputs[0]
        layout = self._layouts[output]
        row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
        sizes = [length(axis) for axis in layout]
        sizes[row], sizes[token] = self._sizes.sequences, self._sizes.segment
        readers = list(output.uses())
        after = self._next(node)
        packed = self._chosen(after, output, sizes, row, token, self._segment_index())
        for use in readers:
            use.node.replace_input_with(use.idx, packed)
        output.shape = ir.Shape(sizes)

    def _next(self, node: ir.Node) -> ir.Node:
        """The node behind `node`."""
        nodes = iter(self._graph)
        for each in nodes:
            if each is node:
                return next(nodes)
        raise PassError(f"packed_transformer: {describe(node)} is the last node: attention itself cannot be an output")

    def _chosen(self, node: ir.Node, value: ir.Value, sizes: Sequence[int], row: int, token: int, index: ir.Value) -> ir.Value:
        """Tokens of `value` by their number in the batch: dimensions `row` and `token` become those of `index`."""
        rest = [axis for axis in range(len(sizes)) if axis not in (row, token)]
        order = [row, token, *rest]
        front = self._transposed(node, value, order, sizes)
        tail = [sizes[axis] for axis in rest]
        flat = self._reshaped(node, front, [sizes[row] * sizes[token], *tail])
        shape = [*(index.shape.numpy() if index.shape is not None else ()), *tail]
        chosen = self._editor.insert(node, "Gather", [flat, index], attributes={"axis": 0}, dtype=value.dtype, shape=shape)
        return self._transposed(node, chosen, _inverse(order), shape)

    def _beyond_sequence(self, node: ir.Node, scores: ir.Value) -> ir.Value:
        """`MASKED_SCORE` for keys behind the end of a sequence, in the dimensions of scores."""
        layout = self._layouts[node.outputs[0]]
        row, key = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.KEY))
        cache = ("beyond", row, key, len(layout), scores.dtype)
        if cache not in self._made:
            sizes, first = self._sizes, self._first
            shape = [1] * len(layout)
            shape[row], shape[key] = sizes.sequences, sizes.segment
            own = self._reshaped(first, self._own_tokens(), shape)
            zero, low = (self._editor.constant(first, np.asarray(number, _float(scores)), "packing/bias") for number in (0.0, MASKED_SCORE))
            self._made[cache] = self._editor.insert(
                first, "Where", [own, zero, low], name="packing/beyond_sequence", dtype=scores.dtype, shape=shape
            )
        return self._made[cache]

    def _own_tokens(self) -> ir.Value:
        """Bool [sequences, segment]: whether the token that stands there belongs to the sequence."""
        if "own" not in self._made:
            sizes = self._sizes
            shape = [sizes.sequences, sizes.segment]
            flat = self._reshaped(self._first, self._numbers, [sizes.rows * sizes.row_length])
            found = self._integers("Gather", [flat, self._token_index()], shape, axis=0)
            own = self._editor.constant(self._first, np.arange(1, sizes.sequences + 1, dtype=np.int32).reshape(-1, 1), "packing/own")
            end = self._editor.constant(self._first, np.asarray(sizes.rows * sizes.row_length, np.int32), "packing/tokens")
            parts = [
                self._editor.insert(self._first, op_type, pair, dtype=ir.DataType.BOOL, shape=shape)
                for op_type, pair in (("Equal", [found, own]), ("Less", [self._made["raw index"], end]))
            ]
            self._made["own"] = self._editor.insert(self._first, "And", parts, dtype=ir.DataType.BOOL, shape=shape)
        return self._made["own"]

    def _token_index(self) -> ir.Value:
        """int32 [sequences, segment]: numbers of each sequence's tokens in the batch; those behind the last token are the last one's."""
        if "index" not in self._made:
            sizes = self._sizes
            steps = self._editor.constant(self._first, np.arange(sizes.segment, dtype=np.int32), "packing/steps")
            shape = [sizes.sequences, sizes.segment]
            starts = self._reshaped(self._first, self._starts(), [sizes.sequences, 1])
            self._made["raw index"] = self._integers("Add", [starts, steps], shape)
            last = self._editor.constant(self._first, np.asarray(sizes.rows * sizes.row_length - 1, np.int32), "packing/last")
            self._made["index"] = self._integers("Min", [self._made["raw index"], last], shape)
        return self._made["index"]

    def _segment_index(self) -> ir.Value:
        """int32 [rows, row_length]: where each token stands among [sequences x segment]; anything for what is no token."""
        if "segment index" not in self._made:
            sizes, editor = self._sizes, self._editor
            shape = [sizes.rows, sizes.row_length]
            one, zero = (editor.constant(self._first, np.asarray(number, np.int32), "packing/number") for number in (1, 0))
            sequence = self._integers("Max", [self._integers("Sub", [self._numbers, one], shape), zero], shape)
            begin = self._integers("Gather", [self._starts(), sequence], shape, axis=0)
            count = editor.constant(self._first, np.arange(prod(shape), dtype=np.int32).reshape(shape), "packing/count")
            last = editor.constant(self._first, np.asarray(sizes.segment - 1, np.int32), "packing/last")
            place = self._integers("Max", [self._integers("Sub", [count, begin], shape), zero], shape)
            place = self._integers("Min", [place, last], shape)
            step = editor.constant(self._first, np.asarray(sizes.segment, np.int32), "packing/segment")
            self._made["segment index"] = self._integers("Add", [self._integers("Mul", [sequence, step], shape), place], shape)
        return self._made["segment index"]

    # The first token of each sequence ----------------------------------------------------------------------------------------------------

    def _select(self, selection: Selection) -> None:
        node, value = selection.node, selection.node.inputs[0]
        assert value is not None, "a node that chooses tokens has something to choose from"
        layout = self._layouts[value]
        row, token = (self._own_axis(node, layout, role) for role in (Role.ROW, Role.TOKEN))
        rest = [axis for axis in range(len(layout)) if axis not in (row, token)]
        sizes = [length(axis) for axis in layout]
        tail = [sizes[axis] for axis in rest]
        front = self._transposed(node, value, [row, token, *rest], sizes)
        flat = self._reshaped(node, front, [self._sizes.rows * self._sizes.row_length, *tail])
        shape = [self._sizes.sequences, *tail]
        chosen = self._editor.insert(node, "Gather", [flat, self._starts()], attributes={"axis": 0}, dtype=value.dtype, shape=shape)
        left = [axis for axis in range(len(layout)) if axis != token]
        chosen = self._transposed(node, chosen, [[row, *rest].index(axis) for axis in left], shape)
        if selection.keeps_axis:
            shape = [1 if axis == token else self._sizes.sequences if axis == row else sizes[axis] for axis in range(len(layout))]
            chosen = self._reshaped(node, chosen, shape)
        old = node.outputs[0]
        self._layouts[chosen] = self._layouts[old]
        self._editor.replace(old, chosen)
        self._editor.remove_dead(node)

    def _starts(self) -> ir.Value:
        """int32 [sequences]: the number of each sequence's first token in the batch."""
        if "starts" not in self._made:
            count = self._sizes.sequences
            zero, one = (self._editor.constant(self._first, np.asarray(number, np.int32), "packing/column") for number in (0, 1))
            step = self._editor.constant(self._first, np.asarray(self._sizes.row_length, np.int32), "packing/row_length")
            row, offset = (self._integers("Gather", [self._places(), column], [count], axis=1) for column in (zero, one))
            self._made["starts"] = self._integers("Add", [self._integers("Mul", [row, step], [count]), offset], [count])
        return self._made["starts"]

    # Sizes -------------------------------------------------------------------------------------------------------------------------------

    def _resize(self) -> None:
        """Gives every value its new shape, and Reshape and Expand their new targets."""
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

    # Nodes -------------------------------------------------------------------------------------------------------------------------------

    def _own_axis(self, node: ir.Node, layout: Layout, role: Role) -> int:
        axis = find(layout, role)
        if axis is None:
            raise PassError(
                f"packed_transformer: {describe(node)}: {role.value}s are not a dimension of their own, so sequences cannot be told apart"
            )
        return axis

    def _integers(self, op_type: str, inputs: Sequence[ir.Value], shape: Sequence[int], **attributes: int) -> ir.Value:
        name = f"packing/{op_type}"
        return self._editor.insert(self._first, op_type, inputs, attributes=attributes, name=name, dtype=ir.DataType.INT32, shape=shape)

    def _reshaped(self, node: ir.Node, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        target = self._editor.constant(node, np.asarray(shape, np.int64), f"{value.name}/shape")
        return self._editor.insert(node, "Reshape", [value, target], name=f"{value.name}/Reshape", dtype=value.dtype, shape=shape)

    def _transposed(self, node: ir.Node, value: ir.Value, order: Sequence[int], sizes: Sequence[int] | None = None) -> ir.Value:
        if list(order) == sorted(order):
            return value
        known = sizes if sizes is not None else value.shape.numpy() if value.shape is not None else ()
        return self._editor.insert(
            node,
            "Transpose",
            [value],
            attributes={"perm": list(order)},
            name=f"{value.name}/Transpose",
            dtype=value.dtype,
            shape=[known[axis] for axis in order],
        )


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(axis) for axis in range(len(order))]


def _float(value: ir.Value) -> np.dtype[np.generic]:
    return (value.dtype or ir.DataType.FLOAT).numpy()


def _is_relative(array: NDArray[np.generic], first: int, second: int) -> bool:
    """Whether entries depend on the difference of two positions only, as those of a causal mask or of relative positions do."""
    moved = np.moveaxis(array, (first, second), (0, 1))
    return bool(np.array_equal(moved[1:, 1:], moved[:-1, :-1]))
