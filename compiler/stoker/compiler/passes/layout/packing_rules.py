"""Finds the operators that process tokens independently, and derives the dimensions of their outputs from those of their inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from stoker.compiler.errors import PassError
from stoker.compiler.passes.edit import constant_ints, describe, input_at, static_shape, subgraphs_of
from stoker.compiler.passes.layout.packing_axes import (
    Factor,
    Joined,
    Layout,
    Mixed,
    Operand,
    Role,
    aligned,
    find,
    joined,
    length,
    plain,
    regrouped,
    relabelled,
    roles,
    roles_in,
)
from stoker.compiler.passes.matching.edges import int_attribute


def words(text: str) -> frozenset[str]:
    """Returns the set of words in `text`."""
    return frozenset(text.split())


#: Of ONNX and of ONNX Runtime: each entry of the output depends on the same entries of the inputs.
_ELEMENTWISE = words(
    """Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu BitwiseAnd BitwiseNot BitwiseOr Cast Ceil Celu Clip Cos Cosh Div
    Dropout Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu
    Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round Selu Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor"""
)
#: They leave a masked score masked.
_KEEPS_MASK = frozenset({"Add", "Cast", "Dropout", "Identity"})
_REDUCTIONS = words("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare")


@dataclass(frozen=True, slots=True)
class Selection:
    """A node that takes the first token of each row, along dimension `axis` of its input; the dimension stays if `keeps_axis`."""

    node: ir.Node
    axis: int
    keeps_axis: bool


@dataclass(slots=True)
class TokenGraph:
    """The result of the analysis.

    Attributes:
        layouts: Dimensions of every value that depends on tokens.
        selections: The nodes at which rows end and sequences begin.
        constants: (node, number of the input, dimensions of the result): constants that differ along rows, tokens or keys.
        keyed: (node, number of the input): where what is known of each token meets the keys of scores.
        sums: Running sums over the tokens of rows, [rows, row length].
        contexts: Products of probabilities and values.
        softmaxes: The Softmax nodes over keys, with whether a mask was added before.
    """

    layouts: dict[ir.Value, Layout] = field(default_factory=dict)
    selections: list[Selection] = field(default_factory=list)
    constants: list[tuple[ir.Node, int, tuple[int, ...]]] = field(default_factory=list)
    keyed: list[tuple[ir.Node, int]] = field(default_factory=list)
    sums: list[ir.Node] = field(default_factory=list)
    contexts: list[ir.Node] = field(default_factory=list)
    softmaxes: dict[ir.Node, bool] = field(default_factory=dict)


def read_tokens(graph: ir.Graph, inputs: dict[ir.Value, Layout]) -> TokenGraph:
    """Follows `inputs` through `graph`.

    Raises:
        PassError: a node mixes the tokens of a row other than by attention, or what it does with them is not known; names the node.
    """
    reading = _Reading(inputs)
    for node in graph:
        if any(value in reading.found.layouts for value in node.inputs if value is not None) or subgraphs_of(node):
            try:
                reading.read(node)
            except Mixed as error:
                raise PassError(f"packed_transformer: {describe(node)} mixes the tokens of a row outside attention: {error}") from None
    return reading.found


class _Reading:
    def __init__(self, inputs: dict[ir.Value, Layout]) -> None:
        self.found = TokenGraph(layouts=dict(inputs))
        self._masked: set[ir.Value] = set()
        self._rules: dict[str, Callable[[ir.Node], Layout]] = {
            "Concat": self._concat,
            "CumSum": self._running_sum,
            "Expand": self._expand,
            "Flatten": self._reshape,
            "Gather": self._gather,
            "Gemm": self._gemm,
            "LayerNormalization": self._normalisation,
            "LogSoftmax": self._softmax,
            "MatMul": self._matmul,
            "OneHot": self._one_hot,
            "RMSNormalization": self._normalisation,
            "Reshape": self._reshape,
            "SimplifiedLayerNormalization": self._normalisation,
            "Slice": self._slice,
            "Softmax": self._softmax,
            "Split": self._split,
            "Squeeze": self._squeeze,
            "Transpose": self._transpose,
            "Unsqueeze": self._unsqueeze,
        }

    def read(self, node: ir.Node) -> None:
        if node.op_type == "Shape":
            return
        if node.op_type in _ELEMENTWISE:
            layout = self._elementwise(node)
        elif node.op_type in _REDUCTIONS or node.op_type in ("ArgMax", "ArgMin"):
            layout = self._reduction(node)
        elif node.op_type in self._rules:
            layout = self._rules[node.op_type](node)
        else:
            raise Mixed(f"nothing is known of how {node.op_type} treats them")
        for output in node.outputs:
            if output.name:
                self.found.layouts[output] = self._sized(output, layout) if node.op_type == "Split" else layout

    def _layout(self, value: ir.Value | None) -> Layout:
        """Returns the dimensions of an input; constants have plain dimensions."""
        if value is not None and value in self.found.layouts:
            return self.found.layouts[value]
        shape = static_shape(value)
        if shape is None:
            raise Mixed(f"the shape of its input '{value.name if value is not None else ''}' is not known")
        return plain(shape)

    def _join(self, node: ir.Node, layouts: Sequence[tuple[int, Layout]], rank: int) -> Joined:
        """Broadcasts inputs, by their numbers, and notes which of them need care; `rank` is that of the node's result."""
        result = joined([Operand(layout, node.inputs[number] in self.found.layouts) for number, layout in layouts])
        shift = rank - len(result.layout)
        for index, axes in result.constant_axes.items():
            self.found.constants.append((node, layouts[index][0], tuple(axis + shift for axis in axes)))
        return result

    def _elementwise(self, node: ir.Node) -> Layout:
        layouts = [(number, self._layout(value)) for number, value in enumerate(node.inputs) if value is not None]
        result = self._join(node, layouts, max(len(layout) for _, layout in layouts))
        for index in result.as_keys:
            self.found.keyed.append((node, layouts[index][0]))
        is_masked = any(value in self._masked for value in node.inputs if value is not None) and node.op_type in _KEEPS_MASK
        if is_masked or (result.as_keys and node.op_type == "Add"):
            self._masked.update(node.outputs)
        return result.layout

    def _matmul(self, node: ir.Node) -> Layout:
        left, right = self._layout(node.inputs[0]), self._layout(node.inputs[1])
        if len(left) < 2 or len(right) < 2:
            raise Mixed("one of its operands is a vector")
        rank = max(len(left), len(right))
        batch = [(number, layout[:-2]) for number, layout in enumerate((left, right)) if len(layout) > 2]
        outer = self._join(node, batch, rank - 2).layout if batch else ()
        outer = aligned(outer, rank - 2)
        summed = (roles(left[-1]), roles(right[-2]))
        if summed == (frozenset({Role.KEY}), frozenset({Role.TOKEN})):
            self.found.contexts.append(node)
        elif summed[0] or summed[1]:
            raise Mixed("it sums over them")
        columns = right[-1]
        if Role.TOKEN in roles(left[-2]) and Role.TOKEN in roles(columns):
            columns = relabelled(columns, Role.TOKEN, Role.KEY)
        return (*outer, left[-2], columns)

    def _gemm(self, node: ir.Node) -> Layout:
        left, right = self._layout(node.inputs[0]), self._layout(node.inputs[1])
        turned = int_attribute(node, "transA", 0), int_attribute(node, "transB", 0)
        left, right = left[::-1] if turned[0] else left, right[::-1] if turned[1] else right
        bias = input_at(node, 2)
        if roles_in(right) or roles(left[1]) or (bias is not None and (roles_in(self._layout(bias)) or not self._is_row(bias))):
            raise Mixed("it sums over them, or adds what differs by row")
        return (left[0], right[1])

    def _is_row(self, bias: ir.Value) -> bool:
        layout = self._layout(bias)
        return len(layout) < 2 or length(layout[0]) == 1

    def _gather(self, node: ir.Node) -> Layout:
        data, index = self._layout(node.inputs[0]), self._layout(node.inputs[1])
        axis = int_attribute(node, "axis", 0) % len(data)
        chosen = roles(data[axis])
        if roles_in(index):
            if roles_in(data):
                raise Mixed("what it chooses, and from what, both depend on them")
            return (*data[:axis], *index, *data[axis + 1 :])
        if chosen == {Role.TOKEN} and constant_ints(node.inputs[1]) == [0] and len(index) < 2:
            return self._selected(node, data, axis, keeps_axis=len(index) == 1)
        if chosen:
            raise Mixed("it chooses tokens other than the first one of each row")
        return (*data[:axis], *index, *data[axis + 1 :])

    def _slice(self, node: ir.Node) -> Layout:
        data, shape = self._layout(node.inputs[0]), static_shape(node.outputs[0])
        starts, ends = constant_ints(node.inputs[1]), constant_ints(node.inputs[2])
        axes, steps = constant_ints(input_at(node, 3)), constant_ints(input_at(node, 4))
        if shape is None or starts is None or ends is None:
            raise Mixed("its bounds are not constant")
        axes = [axis % len(data) for axis in (axes if axes is not None else range(len(starts)))]
        made = list(data)
        for number, axis in enumerate(axes):
            if shape[axis] == length(data[axis]) and (steps is None or steps[number] == 1):
                continue
            if roles(data[axis]) == {Role.TOKEN} and starts[number] == 0 and shape[axis] == 1 and len(axes) == 1:
                return self._selected(node, data, axis, keeps_axis=True)
            if roles(data[axis]):
                raise Mixed("it chooses tokens other than the first one of each row")
            made[axis] = plain([shape[axis]])[0]
        return tuple(made)

    def _selected(self, node: ir.Node, data: Layout, axis: int, *, keeps_axis: bool) -> Layout:
        if find(data, Role.ROW) is None or find(data, Role.TOKEN) != axis or Role.KEY in roles_in(data):
            raise Mixed("it chooses one of them where rows and tokens are not dimensions of their own")
        self.found.selections.append(Selection(node, axis, keeps_axis))
        rest = [relabelled(each, Role.ROW, Role.SEQUENCE) for each in data]
        return (*rest[:axis], *([()] if keeps_axis else []), *rest[axis + 1 :])

    def _concat(self, node: ir.Node) -> Layout:
        layouts = [self._layout(value) for value in node.inputs]
        axis = int_attribute(node, "axis", 0) % len(layouts[0])
        if any(roles(layout[axis]) for layout in layouts):
            raise Mixed("it concatenates along them")
        whole = plain([sum(length(layout[axis]) for layout in layouts)])[0]
        others = [(number, (*layout[:axis], (), *layout[axis + 1 :])) for number, layout in enumerate(layouts)]
        result = self._join(node, others, len(layouts[0]))
        if result.constant_axes or result.as_keys:
            raise Mixed("it concatenates them with what does not depend on them")
        return (*result.layout[:axis], whole, *result.layout[axis + 1 :])

    def _split(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        axis = int_attribute(node, "axis", 0) % len(data)
        if roles(data[axis]):
            raise Mixed("it splits along them")
        return data

    def _sized(self, value: ir.Value, layout: Layout) -> Layout:
        """`layout` with the sizes of this piece where nothing is counted."""
        shape = static_shape(value)
        if shape is None:
            raise Mixed("the sizes of its pieces are not known")
        return tuple(axis if roles(axis) else plain([size])[0] for axis, size in zip(layout, shape, strict=True))

    def _reshape(self, node: ir.Node) -> Layout:
        shape = static_shape(node.outputs[0])
        if shape is None:
            raise Mixed("the shape it makes is not known")
        return regrouped(self._layout(node.inputs[0]), shape)

    def _expand(self, node: ir.Node) -> Layout:
        data, shape = self._layout(node.inputs[0]), static_shape(node.outputs[0])
        if shape is None:
            raise Mixed("the shape it makes is not known")
        return tuple(
            axis if length(axis) == size else (*axis, Factor(Role.SAME, size))
            for axis, size in zip(aligned(data, len(shape)), shape, strict=True)
        )

    def _transpose(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        order = node.attributes.get("perm")
        return tuple(data[axis] for axis in (order.as_ints() if order is not None else reversed(range(len(data)))))

    def _squeeze(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        axes = constant_ints(input_at(node, 1))
        gone = {axis % len(data) for axis in axes} if axes is not None else {n for n, axis in enumerate(data) if length(axis) == 1}
        if any(roles(data[axis]) for axis in gone):
            raise Mixed("it removes the dimension of rows")
        return tuple(axis for number, axis in enumerate(data) if number not in gone)

    def _unsqueeze(self, node: ir.Node) -> Layout:
        data = list(self._layout(node.inputs[0]))
        axes = constant_ints(input_at(node, 1))
        if axes is None:
            raise Mixed("its axes are not constant")
        for axis in sorted(axis % (len(data) + len(axes)) for axis in axes):
            data.insert(axis, ())
        return tuple(data)

    def _softmax(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        axis = data[int_attribute(node, "axis", -1) % len(data)]
        if roles(axis) == {Role.KEY} and node.op_type == "Softmax":
            self.found.softmaxes[node] = node.inputs[0] in self._masked
        elif roles(axis):
            raise Mixed("it normalises over them")
        return data

    def _normalisation(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        first = int_attribute(node, "axis", -1) % len(data)
        if roles_in(data[first:]):
            raise Mixed("it normalises over them")
        return data

    def _reduction(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        attribute = node.attributes.get("axes")
        if node.op_type in ("ArgMax", "ArgMin"):
            axes: Sequence[int] | None = [int_attribute(node, "axis", 0)]
        else:
            axes = attribute.as_ints() if attribute is not None else constant_ints(input_at(node, 1))
        gone = {axis % len(data) for axis in axes} if axes else set(range(len(data)))
        if any(roles(data[axis]) for axis in gone):
            raise Mixed(f"{node.op_type} is over them")
        if int_attribute(node, "keepdims", 1):
            return tuple(() if number in gone else axis for number, axis in enumerate(data))
        return tuple(axis for number, axis in enumerate(data) if number not in gone)

    def _running_sum(self, node: ir.Node) -> Layout:
        data = self._layout(node.inputs[0])
        axis = constant_ints(node.inputs[1])
        if axis is None or roles(data[axis[0] % len(data)]):
            is_plain = not int_attribute(node, "exclusive", 0) and not int_attribute(node, "reverse", 0)
            if axis is None or not is_plain or [roles(each) for each in data] != [{Role.ROW}, {Role.TOKEN}] or axis[0] % 2 != 1:
                raise Mixed("it sums over them")
            self.found.sums.append(node)
        return data

    def _one_hot(self, node: ir.Node) -> Layout:
        data, shape = self._layout(node.inputs[0]), static_shape(node.outputs[0])
        if shape is None:
            raise Mixed("the shape it makes is not known")
        axis = int_attribute(node, "axis", -1) % len(shape)
        return (*data[:axis], *plain([shape[axis]]), *data[axis:])
