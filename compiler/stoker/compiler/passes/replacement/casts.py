"""Casts are replaced by casts to a known type, by comparisons, or by the type of an input."""

import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op, producer_of
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass
from stoker.compiler.passes.registry import model_pass


@rewrite_pass("CastLike")
def replace_castlike(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces CastLike by Cast where the type to follow is known. Exact."""
    value, like = node.inputs
    if value is None or like is None or like.dtype is None:
        return False
    writing = Rewriting(editor, node)
    return writing.finish(writing.cast(value, like.dtype))


#: What ONNX Runtime's Where gives, and what its Equal compares besides.
_RESULTS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)
_SOURCES = (*_RESULTS, ir.DataType.INT8)


@rewrite_pass("Cast")
def replace_consecutive_cast_with_notzero(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces a Cast to BOOL and the Cast of its result to a number by a choice between 0 and 1. Exact, NaN included (it is not zero).

    Upstream's operator NotZero is its own; here it is Equal and Where, the two of ONNX that say it.
    """
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


@model_pass()
def remove_input_cast(model: ir.Model) -> bool:
    """Gives inputs that the model does nothing with but cast to one type that type, and takes the Casts out. The caller must cast then: off
    unless asked for.

    Exact for what the caller casts as ONNX does. Inputs with a default value, and inputs or types of strings, stay.
    """
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
