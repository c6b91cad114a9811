"""`constant_folding`: computes what does not depend on the inputs."""

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.folding import fold_constants
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("constant_folding")
class ConstantFolding(Pass):
    """Computes nodes whose inputs are all constant, as far as the results stay below a size.

    Args:
        max_tensor_size: Bytes that a tensor created may have at most; -1 for any number.
    """

    def __init__(self, max_tensor_size: int = -1) -> None:
        if max_tensor_size < -1:
            raise OptionError(f"max_tensor_size {max_tensor_size}: expected bytes, or -1 for no limit")
        self._max_tensor_size = max_tensor_size

    def run(self, model: ir.Model) -> bool:
        return fold_constants(model, max_tensor_size=self._max_tensor_size)
