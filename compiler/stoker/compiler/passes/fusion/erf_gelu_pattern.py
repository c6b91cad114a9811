"""`erf_gelu_pattern`: the exact GELU, as exporters spell it, becomes one node."""

import math

import onnx_ir as ir

from stoker.compiler.passes.fusion.gelu_nodes import ERF_GELU, fuse_gelu
from stoker.compiler.passes.matching.constants import is_close
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.product import scaled
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("erf_gelu_pattern", before=("fuse_mul_into_matmul",))
class ErfGeluPattern(Pass):
    """Replaces x/2 * (1 + erf(x / sqrt 2)) by one Gelu node (domain com.microsoft).

    The factors may stand in any order, association and form (Div by sqrt 2 or Mul by its inverse, Div by 2 or Mul by 0.5), as torch.onnx,
    tf2onnx and Hugging Face write them. Same function: tolerance is rounding. `gelu_nodes` says how the node is represented.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _fuse, "Erf")


def _fuse(editor: GraphEditor, erf: ir.Node) -> bool:
    argument = erf.inputs[0]
    found = None if argument is None else scaled(argument)
    if found is None or not is_close(found[0], math.sqrt(0.5)):
        return False
    return fuse_gelu(editor, erf, found[1], ERF_GELU)
