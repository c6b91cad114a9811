"""`batchnorm_workaround`: a batch normalisation in inference mode has one element type and one output."""

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting


@register("batchnorm_workaround")
class BatchnormWorkaround(Pass):
    """Gives the parameters of BatchNormalization the element type of its input, and takes out outputs that nothing reads.

    ONNX lets scale, offset, mean and variance have types of their own, and exporters for training leave further outputs. Which gap of
    PopART upstream works around is not documented; these are what an operator of one type and one output needs. Only in inference mode.
    Tolerance is the rounding of parameters.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _repair, "BatchNormalization")


def _repair(editor: GraphEditor, node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None or x.dtype is None or int_attribute(node, "training_mode", 0):
        return False
    changed = False
    for index, value in list(enumerate(node.inputs))[1:5]:
        if value is not None and value.dtype is not None and value.dtype is not x.dtype:
            node.replace_input_with(index, _cast(editor, node, value, x.dtype))
            editor.remove_dead(value.producer())
            editor.drop_unused_initializers([value])
            changed = True
    if len(node.outputs) > 1 and not any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        node.resize_outputs(1)
        changed = True
    return changed


def _cast(editor: GraphEditor, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    array, writing = constant_of(value), Rewriting(editor, node)
    if array is not None:
        return writing.array(array.astype(dtype.numpy()), str(value.name))
    return writing.cast(value, dtype)
