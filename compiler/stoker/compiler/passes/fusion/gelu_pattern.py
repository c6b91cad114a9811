"""`gelu_pattern`: the tanh approximation of GELU, as exporters spell it, becomes one node."""

import math

import onnx_ir as ir

from stoker.compiler.passes.edit import producer_of
from stoker.compiler.passes.fusion.gelu_nodes import TANH_GELU, fuse_gelu
from stoker.compiler.passes.matching.constants import is_close, is_scalar
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import other_input
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.product import monomial_of, product_of
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

#: tanh's argument is LINEAR * x + CUBIC * x^3 (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
LINEAR = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR


@register("gelu_pattern", before=("fuse_mul_into_matmul",))
class GeluPattern(Pass):
    """Replaces x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) by one FastGelu node (domain com.microsoft).

    The polynomial may be written with Pow, as products, or factored as x * (1 + 0.044715 x^2); factors stand in any order. Same function:
    tolerance is rounding. `gelu_nodes` says how the node is represented.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _fuse, "Tanh")


def _fuse(editor: GraphEditor, tanh: ir.Node) -> bool:
    argument = tanh.inputs[0]
    found = None if argument is None else _odd_cubic(argument)
    if found is None:
        return False
    x, linear, cubic = found
    is_gelu = is_close(linear, LINEAR) and is_close(cubic, CUBIC)
    return is_gelu and fuse_gelu(editor, tanh, x, TANH_GELU)


def _odd_cubic(value: ir.Value) -> tuple[ir.Value, float, float] | None:
    """(x, a, b) where `value` is a*x + b*x^3."""
    product = product_of(value)
    if len(product.factors) == 1:
        return _sum_of_powers(product.factors[0], product.scale)
    if len(product.factors) == 2:
        for x, bracket in (product.factors, reversed(product.factors)):
            factored = _one_plus_square(bracket, x)
            if factored is not None:
                return x, product.scale, product.scale * factored
    return None


def _sum_of_powers(value: ir.Value, scale: float) -> tuple[ir.Value, float, float] | None:
    """(x, a, b) where scale * `value` is a*x + b*x^3, from an Add."""
    add = producer_of(value, "Add")
    if add is None or add.inputs[0] is None or add.inputs[1] is None:
        return None
    for first, second in ((add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])):
        cubic = monomial_of(second)
        if cubic is None or cubic.degree != 3:
            continue
        if first is cubic.base:
            return first, scale, scale * cubic.scale
        linear = monomial_of(first)
        if linear is not None and linear.degree == 1 and linear.base is cubic.base:
            return linear.base, scale * linear.scale, scale * cubic.scale
    return None


def _one_plus_square(value: ir.Value, x: ir.Value) -> float | None:
    """C where `value` is 1 + c*x^2."""
    add = producer_of(value, "Add")
    if add is None:
        return None
    for square in add.inputs:
        if square is not None and is_scalar(other_input(add, square), 1.0):
            power = monomial_of(square)
            if power is not None and power.degree == 2 and power.base is x:
                return power.scale
    return None
