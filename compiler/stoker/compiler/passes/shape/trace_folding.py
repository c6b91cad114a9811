"""`trace_folding`: removes the arithmetic on shapes that tracing a framework's model leaves behind."""

import onnx_ir as ir

from stoker.compiler.passes.folding import fold_constants
from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

#: What is computed about shapes is made of these; weights are not.
_INDEX_TYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
#: Bytes; a chain of shape arithmetic never makes more.
_LARGEST = 1 << 16


@register("trace_folding")
class TraceFolding(Pass):
    """Computes the chains of Shape, Gather, Concat and integer arithmetic that end in shapes, once the inputs' shapes are static.

    Weights are left to `constant_folding`. Each round may make more shapes known, which makes more chains constant.
    """

    def run(self, model: ir.Model) -> bool:
        changed = infer_shapes(model)
        while fold_constants(model, max_tensor_size=_LARGEST, only=_is_about_indices):
            changed = True
            infer_shapes(model)
        return changed


def _is_about_indices(node: ir.Node) -> bool:
    return all(output.dtype in _INDEX_TYPES for output in node.outputs)
