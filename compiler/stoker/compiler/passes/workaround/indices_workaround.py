"""`indices_workaround`: indices that count from the end are counted from the start."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting

_ALONG_AN_AXIS = ("Gather", "GatherElements", "ScatterElements")
_ALONG_SEVERAL = ("GatherND", "ScatterND")


@register("indices_workaround")
class IndicesWorkaround(Pass):
    """Makes negative constant indices of Gather and Scatter operators count from the start. Exact.

    Which gap of PopART upstream works around is not documented. The indexed dimensions must be known. Indices that are computed stay:
    whether they are negative is not known.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _count_up, *_ALONG_AN_AXIS, *_ALONG_SEVERAL)


def _count_up(editor: GraphEditor, node: ir.Node) -> bool:
    indices = node.inputs[1]
    array = constant_of(indices)
    if indices is None or array is None or not np.any(array < 0):
        return False
    sizes = _indexed_sizes(node, array)
    if sizes is None:
        return False
    counted = np.where(array < 0, array + sizes, array).astype(array.dtype)
    node.replace_input_with(1, Rewriting(editor, node).array(counted, "indices"))
    editor.remove_dead(indices.producer())
    editor.drop_unused_initializers([indices])
    return True


def _indexed_sizes(node: ir.Node, indices: NDArray[Any]) -> NDArray[np.int64] | None:
    """The sizes of the dimensions that are indexed, to be added to negative indices; None where they are not known."""
    shape = static_shape(node.inputs[0])
    if not shape:
        return None
    if node.op_type in _ALONG_AN_AXIS:
        return np.array(shape[int_attribute(node, "axis", 0)])
    first, count = int_attribute(node, "batch_dims", 0), indices.shape[-1]
    return np.array(shape[first : first + count])
