"""GELU, as exporters spell it, becomes one node.

Opset 18's main domain has no Gelu (20 has). A fused GELU is therefore ONNX Runtime's contributed operator, in domain `com.microsoft`
version 1, which survives every opset conversion:

* `Gelu(x)` is x/2 * (1 + erf(x / sqrt 2)), from `erf_gelu_pattern`;
* `FastGelu(x)` is x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), from `gelu_pattern`.

ONNX's own shape inference does not know them; the output keeps the type and shape it had.
"""

import math

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op, only_use, producer_of
from stoker.compiler.passes.matching.edges import (
    enclosing_product,
    is_close,
    is_private,
    is_scalar,
    monomial_of,
    other_input,
    product_of,
    scaled,
)
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import rewrite_pass

GELU_DOMAIN = "com.microsoft"
ERF_GELU = "Gelu"
TANH_GELU = "FastGelu"

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def fuse_gelu(editor: GraphEditor, curve: ir.Node, x: ir.Value, op_type: str) -> bool:
    """Replaces x/2 * (1 + curve) by one node; `curve` is the Erf or Tanh node. Returns whether the graph matched."""
    if x.dtype not in _FLOATS:
        return False
    plus_one = only_use(curve.outputs[0])
    if plus_one is None or not is_op(plus_one, "Add") or not is_scalar(other_input(plus_one, curve.outputs[0]), 1.0):
        return False
    if not is_private(plus_one.outputs[0]):
        return False
    last = enclosing_product(plus_one.outputs[0], 0.5, [x, plus_one.outputs[0]])
    if last is None:
        return False
    fused = editor.insert(last, op_type, [x], domain=GELU_DOMAIN, name=f"{last.name or curve.name}/{op_type}", like=x)
    editor.replace(last.outputs[0], fused)
    editor.remove_dead(last)
    return True


@rewrite_pass("Erf", before=("fuse_mul_into_matmul",))
def erf_gelu_pattern(editor: GraphEditor, erf: ir.Node) -> bool:
    """Replaces x/2 * (1 + erf(x / sqrt 2)) by one Gelu node (domain com.microsoft).

    The factors may stand in any order, association and form (Div by sqrt 2 or Mul by its inverse, Div by 2 or Mul by 0.5), as torch.onnx,
    tf2onnx and Hugging Face write them. Same function: tolerance is rounding.
    """
    argument = erf.inputs[0]
    found = None if argument is None else scaled(argument)
    if found is None or not is_close(found[0], math.sqrt(0.5)):
        return False
    return fuse_gelu(editor, erf, found[1], ERF_GELU)


#: tanh's argument is LINEAR * x + CUBIC * x^3 (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
LINEAR = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR


@rewrite_pass("Tanh", before=("fuse_mul_into_matmul",))
def gelu_pattern(editor: GraphEditor, tanh: ir.Node) -> bool:
    """Replaces x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) by one FastGelu node (domain com.microsoft).

    The polynomial may be written with Pow, as products, or factored as x * (1 + 0.044715 x^2); factors stand in any order. Same function:
    tolerance is rounding.
    """
    argument = tanh.inputs[0]
    found = None if argument is None else _odd_cubic(argument)
    if found is None:
        return False
    x, linear, cubic = found
    is_gelu = is_close(linear, LINEAR) and is_close(cubic, CUBIC)
    return is_gelu and fuse_gelu(editor, tanh, x, TANH_GELU)


def _odd_cubic(value: ir.Value) -> tuple[ir.Value, float, float] | None:
    """Returns (x, a, b) where `value` is a*x + b*x^3."""
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
    """Returns (x, a, b) where scale * `value` is a*x + b*x^3, from an Add."""
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
    """Returns c where `value` is 1 + c*x^2."""
    add = producer_of(value, "Add")
    if add is None:
        return None
    for square in add.inputs:
        if square is not None and is_scalar(other_input(add, square), 1.0):
            power = monomial_of(square)
            if power is not None and power.degree == 2 and power.base is x:
                return power.scale
    return None
