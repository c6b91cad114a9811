"""`check_unsupported_attribute`: refuses attributes that would be ignored or that no target can honour."""

import onnx
import onnx_ir as ir

from stoker.compiler.errors import Unsupported, UnsupportedOperators
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes


@register("check_unsupported_attribute")
class CheckUnsupportedAttribute(Pass):
    """Refuses nodes with attributes that their operator does not have, of the wrong type, or that ask for training; all of them at once.

    Operators of other domains than ONNX's are not looked at, since their schemas are not known.
    """

    def run(self, model: ir.Model) -> bool:
        opset = model.opset_imports.get("", 1)
        found = [
            Unsupported(str(node.name or node.outputs[0].name), node.op_type, reason)
            for node in traverse_nodes(model)
            if node.domain == ""
            for reason in _objections(node, opset)
        ]
        if found:
            raise UnsupportedOperators("inference", found)
        return False


def _objections(node: ir.Node, opset: int) -> list[str]:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return [f"opset {opset} has no such operator"]
    objections = []
    for name, attribute in node.attributes.items():
        formal = schema.attributes.get(name)
        if formal is None:
            objections.append(f"opset {opset} gives it no attribute '{name}'")
        elif (expected := str(formal.type).rpartition(".")[2]) != attribute.type.name:
            objections.append(f"attribute '{name}' is {attribute.type.name} instead of {expected}")
        elif name == "training_mode" and not attribute.is_ref() and attribute.as_int():
            objections.append("attribute 'training_mode' is 1; only inference is compiled")
    required = [name for name, formal in schema.attributes.items() if formal.required]
    return objections + [f"attribute '{name}' is missing" for name in required if name not in node.attributes]
