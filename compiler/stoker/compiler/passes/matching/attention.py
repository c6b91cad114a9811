"""Finds attention in the forms that exporters write: softmax(query x key + mask) x value, and the projections of the three.

Between the first product and the softmax stand, in any order, a division by the root of the head size (also as a factor, also before the
product on query or key) and masks (added, subtracted, or selected by Where). Between projections and products stand reshapes and
transposes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, only_use, producer_of, rank_of, traverse_nodes
from stoker.compiler.passes.matching.edges import int_attribute, is_constant, is_private, reader_of, scalar_of, split_constant

#: Operators that move elements and leave each as it is.
MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten")


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention.

    Attributes:
        scores: MatMul of query and key.
        between: Nodes from the product to the softmax, in the order of the data; each reads the one before and no other node does.
        softmax: Softmax over the last dimension.
        context: MatMul of the probabilities and the value.
    """

    scores: ir.Node
    between: tuple[ir.Node, ...]
    softmax: ir.Node
    context: ir.Node

    @property
    def operands(self) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
        """Query, key (transposed, as the product reads it) and value."""
        return self.scores.inputs[0], self.scores.inputs[1], self.context.inputs[1]


@dataclass(frozen=True, slots=True)
class Projection:
    """A product with constant weights, and the Add of a constant that follows it directly, if one does.

    Attributes:
        matmul: The product; its second input is the constant matrix.
        add: The Add, or None.
        bias: What is added, or None.
        path: Values from the result of the projection to where it was looked for, in the order of the data.
        scales: Mul and Div by a constant number that stand on that way.
    """

    matmul: ir.Node
    add: ir.Node | None
    bias: ir.Value | None
    path: tuple[ir.Value, ...]
    scales: tuple[ir.Node, ...]

    @property
    def output(self) -> ir.Value:
        """The output of the projection."""
        return (self.add or self.matmul).outputs[0]


def find_attentions(model: ir.Model) -> Iterator[Attention]:
    """Yields every attention of the model in graph order. The caller may change the graph around those already yielded."""
    for node in traverse_nodes(model):
        if is_op(node, "Softmax") and (found := attention_around(node)) is not None:
            yield found


def attention_around(softmax: ir.Node) -> Attention | None:
    """The attention whose softmax this is, or None."""
    rank = rank_of(softmax.inputs[0]) or rank_of(softmax.outputs[0])
    axis = int_attribute(softmax, "axis", -1)
    if axis != -1 and (rank is None or axis != rank - 1):
        return None
    between = _to_product(softmax.inputs[0])
    if between is None:
        return None
    scores, nodes = between
    value = softmax.outputs[0]
    while (passing := reader_of(value, "Dropout", "Identity", "Cast")) is not None:
        value = passing.outputs[0]
    context = reader_of(value, "MatMul")
    return Attention(scores, nodes, softmax, context) if context is not None and context.inputs[0] is value else None


def _to_product(value: ir.Value | None) -> tuple[ir.Node, tuple[ir.Node, ...]] | None:
    """The MatMul of two non-constant operands that `value` comes from, and the nodes between, in order from the product."""
    node = None if value is None else value.producer()
    if value is None or node is None or not is_private(value):
        return None
    if is_op(node, "MatMul"):
        return None if any(is_constant(operand) for operand in node.inputs) else (node, ())
    if is_op(node, "Where"):
        candidates = list(node.inputs[1:3])
    elif is_op(node, "Add", "Mul", "Max"):
        candidates = list(node.inputs)
    elif is_op(node, "Sub", "Div", "Cast", "Identity", "Clip"):
        candidates = [node.inputs[0]]
    else:
        return None
    for candidate in candidates:
        found = _to_product(candidate)
        if found is not None:
            return found[0], (*found[1], node)
    return None


def is_scaling(node: ir.Node) -> float | None:
    """The scalar by which `node` multiplies; None if `node` is not such a product."""
    parts = split_constant(node) if is_op(node, "Mul", "Div") else None
    number = None if parts is None else scalar_of(parts[1])
    if parts is None or not number or (node.op_type == "Div" and parts[1] is not node.inputs[1]):
        return None
    return 1.0 / number if node.op_type == "Div" else number


def projection_of(value: ir.Value | None) -> Projection | None:
    """The projection that computes `value`, found behind reshapes, transposes and scalings."""
    path: list[ir.Value] = []
    scales: list[ir.Node] = []
    while value is not None:
        path.insert(0, value)
        node = value.producer()
        if node is None:
            return None
        if is_op(node, "MatMul"):
            return _with_weights(node, None, None, path, scales)
        if is_op(node, "Add") and (parts := split_constant(node)) is not None:
            matmul = producer_of(parts[0], "MatMul")
            if matmul is not None and only_use(parts[0]) is node:
                return _with_weights(matmul, node, parts[1], path, scales)
            return None
        scale = is_scaling(node)
        if scale is not None:
            scales.insert(0, node)
            value = (split_constant(node) or (None,))[0]
        elif is_op(node, *MOVES):
            value = node.inputs[0]
        else:
            return None
    return None


def _with_weights(
    matmul: ir.Node, add: ir.Node | None, bias: ir.Value | None, path: list[ir.Value], scales: list[ir.Node]
) -> Projection | None:
    weights = constant_of(matmul.inputs[1])
    if weights is None or weights.ndim != 2:
        return None
    return Projection(matmul, add, bias, tuple(path), tuple(scales))
