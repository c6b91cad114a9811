"""`add_checkpoints`: shows what is computed on the way."""

from collections.abc import Sequence

import onnx_ir as ir

from stoker.compiler.errors import PassError
from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("add_checkpoints")
class AddCheckpoints(Pass):
    """Makes tensors inside the main graph outputs as well, after those that there are.

    Args:
        checkpoints: Names of tensors that nodes of the main graph make.
    """

    def __init__(self, checkpoints: Sequence[str] = ()) -> None:
        self._names = list(dict.fromkeys(checkpoints))

    def run(self, model: ir.Model) -> bool:
        made = {output.name: output for node in model.graph for output in node.outputs if output.name}
        missing = [name for name in self._names if name not in made]
        if missing:
            raise PassError(f"no node of the main graph makes {', '.join(repr(name) for name in missing)}")
        added = [made[name] for name in self._names if not made[name].is_graph_output()]
        if any(value.type is None for value in added):
            infer_shapes(model)
        if untyped := [value.name for value in added if value.type is None]:
            raise PassError(f"the element type of {', '.join(repr(name) for name in untyped)} is not known, as outputs need it")
        model.graph.outputs.extend(added)
        return bool(added)
