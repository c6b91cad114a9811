"""Which tensors lie on the same tiles in the same order.

An element-wise operator runs where its first operand lies, and writes its output there. Another operand of the same size that lies alike is
read in place; one that lies otherwise is exchanged first. So `x * gelu(x)` exchanges nothing, and a residual sum exchanges one operand:
products, gathers and reductions write in a layout of their own.
"""

from collections.abc import Hashable, Mapping

import onnx_ir as ir

from stoker.backends.ipu.compile.constants import PASSES
from stoker.compiler.lowering.typed_graph import TensorFacts

#: Operators besides the element-wise ones that write where they read: their reductions leave the tensor in its place.
_IN_PLACE = frozenset({"Erf", "Softmax", "LogSoftmax"})
_KEEPING = _IN_PLACE | {
    "LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "LpNormalization", "FastNorm",
}  # fmt: skip
#: Views whose elements are in the order of their input.
_SAME_ORDER = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})


def is_in_place(node: ir.Node) -> bool:
    """Whether the output of `node` may overwrite an input of its size that no later node reads, as in PopART."""
    return node.op_type in PASSES or node.op_type in _IN_PLACE


class Layouts:
    """The layouts of a graph's values: equal for values that lie alike. A value without an entry has a layout of its own."""

    def __init__(self) -> None:
        self._layout_of: dict[ir.Value, Hashable] = {}

    def moved_bytes(self, node: ir.Node, facts: Mapping[ir.Value, TensorFacts], *, is_view: bool) -> int:
        """Notes the layout of `node`'s outputs, and returns the bytes of the operands that must be exchanged for it.

        Args:
            node: The nodes are passed in the order in which they run.
            facts: Of its inputs and outputs.
            is_view: Whether its outputs are views.
        """
        output = node.outputs[0]
        elements = facts[output].elements
        full = [value for value in node.inputs if value is not None and facts[value].elements == elements]
        keeps = node.op_type in _SAME_ORDER if is_view else is_in_place(node) or node.op_type in _KEEPING
        if not keeps or not full:
            return 0
        first, *others = full
        self._layout_of[output] = layout = self._layout_of.get(first, first)
        if is_view:
            return 0
        alike = {layout}
        moved = 0
        for value in others:
            if not facts[value].is_constant and (found := self._layout_of.get(value, value)) not in alike:
                alike.add(found)
                moved += facts[value].byte_count
        return moved
