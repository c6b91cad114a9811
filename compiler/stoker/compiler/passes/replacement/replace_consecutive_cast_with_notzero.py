"""`replace_consecutive_cast_with_notzero`: a cast to truth values and back to numbers asks whether a number is zero."""

import onnx_ir as ir

from stoker.compiler.passes.edit import producer_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

#: What ONNX Runtime's Where gives, and what its Equal compares besides.
_RESULTS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)
_SOURCES = (*_RESULTS, ir.DataType.INT8)


@register("replace_consecutive_cast_with_notzero")
class ReplaceConsecutiveCastWithNotzero(Pass):
    """Replaces a Cast to BOOL and the Cast of its result to a number by a choice between 0 and 1. Exact, NaN included (it is not zero).

    Upstream's operator NotZero is its own; here it is Equal and Where, the two of ONNX that say it.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Cast")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    to_bool = producer_of(node.inputs[0], "Cast")
    value = None if to_bool is None else to_bool.inputs[0]
    result = ir.DataType(node.attributes["to"].as_int())
    if to_bool is None or value is None or to_bool.attributes["to"].as_int() != ir.DataType.BOOL:
        return False
    if value.dtype not in _SOURCES or result not in _RESULTS:
        return False
    writing = Rewriting(editor, node)
    is_zero = writing.op("Equal", value, writing.number(0, value, "zero"), dtype=ir.DataType.BOOL, shape=value.shape)
    numbers = [writing.array(result.numpy().type(number), role) for number, role in ((0, "no"), (1, "yes"))]
    return writing.finish(writing.op("Where", is_zero, *numbers, dtype=result, shape=value.shape))
