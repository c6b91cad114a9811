"""`remove_initializer_from_input`: weights that callers could have overridden."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("remove_initializer_from_input")
class RemoveInitializerFromInput(Pass):
    """Removes initialisers from the list of inputs, where IR versions before 4 had them all; they are constants then."""

    def run(self, model: ir.Model) -> bool:
        return bool(RemoveInitializersFromInputsPass()(model).modified)
