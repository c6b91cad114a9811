"""`remove_input_cast`: callers give an input in the type that the model casts it to."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("remove_input_cast")
class RemoveInputCast(Pass):
    """Gives inputs that the model does nothing with but cast to one type that type, and takes the Casts out. The caller must cast then: off
    unless asked for.

    Exact for what the caller casts as ONNX does. Inputs with a default value, and inputs or types of strings, stay.
    """

    def run(self, model: ir.Model) -> bool:
        changed = False
        for value in model.graph.inputs:
            changed |= _retype(model.graph, value)
        return changed


def _retype(graph: ir.Graph, value: ir.Value) -> bool:
    casts = {use.node for use in value.uses()}
    if not casts or value.is_graph_output() or value.is_initializer() or value.dtype is None:
        return False
    if any(not is_op(cast, "Cast") or cast.graph is not graph for cast in casts):
        return False
    targets = {cast.attributes["to"].as_int() for cast in casts}
    if len(targets) > 1 or ir.DataType.STRING in (value.dtype, *targets):
        return False
    value.type = ir.TensorType(ir.DataType(targets.pop()))
    for cast in [node for node in graph if node in casts]:
        bypass(cast)
    return True
