"""`float_ops_workaround`: operators that devices have for floats only get floats."""

import onnx_ir as ir

from stoker.compiler.passes.matching.constants import is_constant
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

#: Operators that ONNX has for integers as well, and the inputs that share their type (a reduction's axes and an exponent do not).
_SHARED = {
    "MatMul": (0, 1),
    "Gemm": (0, 1, 2),
    "Pow": (0,),
    **dict.fromkeys(("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (0,)),
}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)


@register("float_ops_workaround")
class FloatOpsWorkaround(Pass):
    """Puts Casts to FLOAT and back around products, powers, means, norms and logarithms of integers, for targets that have them in floats.

    IPUs multiply matrices in floats only; which operators upstream's pass is about is not documented. Exact while all numbers stay below
    2**24; fractions are cut off, as ONNX Runtime does.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _surround, *_SHARED)


def _surround(editor: GraphEditor, node: ir.Node) -> bool:
    kind = node.outputs[0].dtype or (node.inputs[0].dtype if node.inputs[0] is not None else None)
    if kind not in _INTEGERS or all(value is None or is_constant(value) for value in node.inputs):
        return False
    writing, shape = Rewriting(editor, node), node.outputs[0].shape
    inputs = list(node.inputs)
    for index in _SHARED[node.op_type]:
        value = inputs[index] if index < len(inputs) else None
        if value is not None:
            inputs[index] = writing.cast(value, ir.DataType.FLOAT)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result = writing.op(node.op_type, *inputs, dtype=ir.DataType.FLOAT, shape=shape, **attributes)
    return writing.finish(writing.cast(result, kind))
