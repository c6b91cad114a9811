"""`shape_inference`: writes down the shapes and types that follow from the inputs'."""

import onnx_ir as ir

from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("shape_inference")
class ShapeInference(Pass):
    """Infers shapes and element types of all values, with the contents of small shape tensors followed as well."""

    def run(self, model: ir.Model) -> bool:
        return infer_shapes(model)
