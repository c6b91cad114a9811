"""Follows the edges of a graph: the readers of a value, its producers, and its constants.

`product_of`: a chain of Mul and Div nodes as one constant factor and a list of the values multiplied, whatever their order. Exporters write
0.5 * x * (1 + t) in every association and operand order; as a product they are all the same.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, only_use, producer_of, subgraphs_of

#: How far a constant may lie from the number it stands for: half precision keeps 11 bits, so that sqrt(2) in FP16 is 3e-4 off.
SCALAR_TOLERANCE = 1e-3


def is_constant(value: ir.Value | None) -> bool:
    """Whether `value` holds the same array in every run; the array is not read."""
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() if producer is None else is_op(producer, "Constant")


def scalar_of(value: ir.Value | None) -> float | None:
    """The number in constant `value` of shape [] or [1]; None for any other value."""
    if not is_constant(value):
        return None
    array = constant_of(value)
    if array is None or array.size != 1 or array.ndim > 1 or array.dtype.kind not in "fiuV":
        return None
    return float(array.reshape(())[()])


def is_close(found: float, expected: float) -> bool:
    """Whether two numbers are equal within half precision."""
    return math.isclose(found, expected, rel_tol=SCALAR_TOLERANCE, abs_tol=0.0)


def is_scalar(value: ir.Value | None, expected: float) -> bool:
    """Whether `value` is the constant `expected` within half precision."""
    found = scalar_of(value)
    return found is not None and is_close(found, expected)


def is_private(value: ir.Value) -> bool:
    """Whether exactly one node input reads `value` and it is not a graph output, so that a pass may replace it."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def reader_of(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The one node that reads `value`, once, if nothing else does and it is one of these operators of the main domain."""
    node = only_use(value)
    return node if is_op(node, *op_types) else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other input of a two-input node that reads `value`; None if both inputs or neither is `value`."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if (first is value) == (second is value):
        return None
    return second if first is value else first


def split_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Returns the (variable, constant) inputs of a commutative two-input node; None unless it has one of each."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is None or second is None or is_constant(first) == is_constant(second):
        return None
    return (second, first) if is_constant(first) else (first, second)


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def ancestors(values: Iterable[ir.Value | None], *, within: ir.Graph | None = None) -> Iterator[ir.Node]:
    """Every node that `values` depend on, each once; with `within`, only nodes of that graph."""
    seen: set[ir.Node] = set()
    waiting = [value.producer() for value in values if value is not None]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or (within is not None and node.graph is not within):
            continue
        seen.add(node)
        yield node
        waiting += [value.producer() for value in values_read_by(node)]


def values_read_by(node: ir.Node) -> list[ir.Value]:
    """The values that `node` reads: its inputs, and outer values that the graphs in its attributes use."""
    found = [value for value in node.inputs if value is not None]
    for graph in subgraphs_of(node):
        graphs = [graph, *graph.subgraphs()]
        own = {output for each in graph.all_nodes() for output in each.outputs}
        own.update(value for each in graphs for value in [*each.inputs, *each.initializers.values()])
        read = [value for each in graph.all_nodes() for value in each.inputs] + [value for each in graphs for value in each.outputs]
        found += [value for value in read if value is not None and value not in own]
    return found


def is_ancestor(node: ir.Node, of: Iterable[ir.Value | None]) -> bool:
    """Whether any of the values `of` depends on `node`."""
    return any(each is node for each in ancestors(of))


@dataclass(slots=True)
class Product:
    """`scale` times all of `factors`.

    Attributes:
        scale: Product of the scalar constants.
        factors: Values multiplied, with repetitions.
        nodes: The Mul and Div nodes it was read from; the first makes the whole.
    """

    scale: float = 1.0
    factors: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)


def product_of(value: ir.Value) -> Product:
    """Factorises `value`. Opens an inner product only if no other node reads it, so that the caller can remove all of `nodes`."""
    found = Product()
    _collect(value, found, is_root=True)
    return found


def scaled(value: ir.Value) -> tuple[float, ir.Value, list[ir.Node]] | None:
    """Returns (c, x, nodes) if `value` is c * x, from Mul and Div by scalar constants; None for a product of several values."""
    product = product_of(value)
    return (product.scale, product.factors[0], product.nodes) if len(product.factors) == 1 else None


def _collect(value: ir.Value, into: Product, *, is_root: bool) -> None:
    constant = scalar_of(value)
    if constant is not None:
        into.scale *= constant
        return
    node = value.producer()
    if node is None or not is_op(node, "Mul", "Div") or not (is_root or is_private(value)):
        into.factors.append(value)
        return
    left, right = node.inputs
    if left is None or right is None:
        into.factors.append(value)
        return
    if node.op_type == "Div":
        divisor = scalar_of(right)
        if not divisor:
            into.factors.append(value)
            return
        into.nodes.append(node)
        into.scale /= divisor
        _collect(left, into, is_root=False)
        return
    into.nodes.append(node)
    _collect(left, into, is_root=False)
    _collect(right, into, is_root=False)


def power_of(value: ir.Value) -> tuple[int, ir.Value] | None:
    """Returns (n, x) if `value` is x**n: a Pow with an integer constant exponent, or a Mul of equal values (also of powers)."""
    node = producer_of(value, "Pow")
    if node is not None:
        base, exponent = node.inputs[0], scalar_of(node.inputs[1])
        return (round(exponent), base) if base is not None and exponent is not None and exponent in (2.0, 3.0) else None
    product = producer_of(value, "Mul")
    if product is None:
        return None
    left, right = product.inputs
    if left is None or right is None:
        return None
    if left is right:
        return 2, left
    for inner, outer in ((left, right), (right, left)):
        power = power_of(inner)
        if power is not None and power[1] is outer:
            return power[0] + 1, outer
    return None


@dataclass(frozen=True, slots=True)
class Monomial:
    """`scale` * `base` ** `degree`."""

    scale: float
    base: ir.Value
    degree: int


def monomial_of(value: ir.Value) -> Monomial | None:
    """`value` as a scaled power of one value, or None."""
    product = product_of(value)
    bases: list[ir.Value] = []
    degree = 0
    for factor in product.factors:
        power, base = power_of(factor) or (1, factor)
        bases.append(base)
        degree += power
    return Monomial(product.scale, bases[0], degree) if bases and all(base is bases[0] for base in bases) else None


def enclosing_product(value: ir.Value, scale: float, factors: list[ir.Value]) -> ir.Node | None:
    """The smallest chain of Mul and Div around `value` that is `scale` times exactly `factors`: its last node, or None.

    Nothing between `value` and that node is read elsewhere or is an output.
    """
    current = value
    while (node := only_use(current)) is not None and is_op(node, "Mul", "Div"):
        current = node.outputs[0]
        product = product_of(current)
        same = len(product.factors) == len(factors) and set(product.factors) == set(factors)
        if same and is_close(product.scale, scale):
            return node
    return None
