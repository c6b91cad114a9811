"""`Rewriting`: other operators are written in the place of one node."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from compiler.passes.edit import static_shape
from compiler.passes.matching.editing import GraphEditor


class Rewriting:
    """Puts nodes in front of `node` one by one; `finish` lets the last ones take its place. They carry its name and its metadata.

    Args:
        editor: Of the model.
        node: What is to be replaced.
    """

    def __init__(self, editor: GraphEditor, node: ir.Node) -> None:
        self._editor, self._node = editor, node
        self._label = node.name or node.outputs[0].name or node.op_type
        self._written: set[ir.Value] = set()

    def number(self, value: float, like: ir.Value, role: str) -> ir.Value:
        """A constant scalar of the element type of `like`, which must be known."""
        assert like.dtype is not None, "whoever needs a constant has looked at its type"
        return self.array(np.asarray(value, like.dtype.numpy()), role)

    def array(self, array: ArrayLike, role: str) -> ir.Value:
        """A constant."""
        return self._editor.constant(self._node, array, f"{self._label}/{role}")

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        dtype: ir.DataType | None = None,
        shape: ir.Shape | tuple[int, ...] | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """The output of one more node.

        Args:
            op_type: Of ONNX's own domain.
            inputs: Its inputs; None for one that is left out.
            dtype: Of the output; by default that of the first input.
            shape: Of the output; by default what element by element work on the inputs gives, as far as it is known.
            attributes: Its attributes.
        """
        first = next((value for value in inputs if value is not None), None)
        sizes = _broadcast(inputs) if shape is None else shape
        output = self._editor.insert(
            self._node,
            op_type,
            inputs,
            attributes=attributes,
            name=f"{self._label}/{op_type}",
            dtype=dtype if dtype is not None or first is None else first.dtype,
            metadata=self._node.metadata_props,
        )
        output.shape = None if sizes is None else ir.Shape(sizes)
        self._written.add(output)
        return output

    def finish(self, *results: ir.Value) -> bool:
        """Lets `results` take the place of the node's outputs, as many as they are, and takes the node out.

        Returns:
            True, for passes to return.
        """
        for output, result in zip(self._node.outputs, results, strict=False):
            if result in self._written:
                self._editor.replace(output, result)
            else:
                self._editor.bypass(output, result)
        self._editor.remove_dead(self._node)
        return True


def _broadcast(inputs: tuple[ir.Value | None, ...]) -> ir.Shape | tuple[int, ...] | None:
    """The shape of element by element work: where a dimension is not known, that of the only input that is no scalar."""
    shapes = [static_shape(value) for value in inputs if value is not None]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        try:
            return np.broadcast_shapes(*known)
        except ValueError:  # no element by element work: who asked will know the shape, or inference will find it
            return None
    others = [value.shape for value, shape in zip((v for v in inputs if v is not None), shapes, strict=True) if shape != ()]
    return others[0] if len(others) == 1 else None
