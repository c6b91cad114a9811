"""How a fused GELU is written down, and what the two passes that find one share.

Opset 18's main domain has no Gelu (20 has). A fused GELU is therefore ONNX Runtime's contributed operator, in domain `com.microsoft`
version 1, which survives every opset conversion:

* `Gelu(x)` is x/2 * (1 + erf(x / sqrt 2)), from `erf_gelu_pattern`;
* `FastGelu(x)` is x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), from `gelu_pattern`.

ONNX's own shape inference does not know them; the output keeps the type and shape it had.
"""

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op, only_use
from stoker.compiler.passes.matching.constants import is_scalar
from stoker.compiler.passes.matching.edges import is_private, other_input
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.product import enclosing_product

GELU_DOMAIN = "com.microsoft"
ERF_GELU = "Gelu"
TANH_GELU = "FastGelu"

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def fuse_gelu(editor: GraphEditor, curve: ir.Node, x: ir.Value, op_type: str) -> bool:
    """Replaces x/2 * (1 + curve) by one node; `curve` is the Erf or Tanh node. Returns whether the graph around it was one."""
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
