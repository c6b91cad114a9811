"""`remove_outputs`: removes outputs."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from stoker.compiler.errors import PassError
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("remove_outputs")
class RemoveOutputs(Pass):
    """Drops outputs of the model, with the nodes and weights that only they needed. The inputs stay, so that callers need not change.

    Args:
        remove_outputs: Names of outputs; at least one other must be left.
    """

    def __init__(self, remove_outputs: Sequence[str] = ()) -> None:
        self._names = set(remove_outputs)

    def run(self, model: ir.Model) -> bool:
        outputs = list(model.graph.outputs)
        names = [output.name for output in outputs]
        if unknown := sorted(self._names - set(map(str, names))):
            raise PassError(f"there is no output {', '.join(map(repr, unknown))}; the outputs are {', '.join(map(str, names))}")
        kept = [output for output in outputs if output.name not in self._names]
        if not kept:
            raise PassError("no output would be left")
        if len(kept) == len(outputs):
            return False
        model.graph.outputs.clear()
        model.graph.outputs.extend(kept)
        RemoveUnusedNodesPass()(model)
        return True
