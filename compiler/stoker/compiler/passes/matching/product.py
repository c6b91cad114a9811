"""`product_of`: a chain of Mul and Div nodes as one constant factor and a list of the values multiplied, whatever their order.

Exporters write 0.5 * x * (1 + t) in every association and operand order; as a product they are all the same.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op, only_use, producer_of
from stoker.compiler.passes.matching.edges import is_close, is_private, scalar_of


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
    """`value` taken apart. Inner products are opened only where no other node reads them, so that all of `nodes` can go."""
    found = Product()
    _collect(value, found, is_root=True)
    return found


def scaled(value: ir.Value) -> tuple[float, ir.Value, list[ir.Node]] | None:
    """(c, x, nodes) where `value` is c * x, from Mul and Div by scalar constants; None where it is a product of several values."""
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
    """(n, x) where `value` is x**n: by Pow with a whole constant exponent, or by Mul of equal values (also of powers)."""
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
