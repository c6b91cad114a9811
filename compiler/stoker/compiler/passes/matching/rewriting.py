"""The frame of passes that find a pattern around nodes of certain operators and replace it by other operators."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.registry import register_function, visit_nodes

Rewrite = Callable[[GraphEditor, ir.Node], bool]


def rewrite_pass(*op_types: str, against: Iterable[str] = (), before: Iterable[str] = ()) -> Callable[[Rewrite], Rewrite]:
    """Registers the decorated function under its own name, as a pass that `visit_nodes` of these operators with it and one editor."""

    def enter(rewrite: Rewrite) -> Rewrite:
        def run(model: ir.Model) -> bool:
            editor = GraphEditor(model)
            return visit_nodes(model, lambda node: rewrite(editor, node), *op_types)

        register_function(rewrite, run, against=against, before=before)
        return rewrite

    return enter


class Rewriting:
    """Inserts nodes in front of `node`; `finish` replaces `node` by the last ones. They get its name and its metadata.

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
        shape: ir.Shape | tuple[int, ...] | None,
        dtype: ir.DataType | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """The output of one more node.

        Args:
            op_type: Of ONNX's own domain.
            inputs: Its inputs; None for one that is left out.
            shape: Of the output; None where it is not known.
            dtype: Of the output; by default that of the first input.
            attributes: Its attributes.
        """
        first = inputs[0] if inputs else None
        output = self._editor.insert(
            self._node,
            op_type,
            inputs,
            attributes=attributes,
            name=f"{self._label}/{op_type}",
            dtype=dtype if dtype is not None or first is None else first.dtype,
            metadata=self._node.metadata_props,
        )
        output.shape = None if shape is None else ir.Shape(shape)
        self._written.add(output)
        return output

    def each(self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None, **attributes: Any) -> ir.Value:
        """Adds an element-wise node, and returns its output; its shape is the broadcast shape of the inputs."""
        return self.op(op_type, *inputs, shape=_broadcast(inputs), dtype=dtype, **attributes)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`value` in another element type."""
        return self.each("Cast", value, dtype=dtype, to=int(dtype))

    def finish(self, *results: ir.Value) -> bool:
        """Replaces the node's outputs by `results`, and removes the node.

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


def _broadcast(inputs: tuple[ir.Value, ...]) -> ir.Shape | tuple[int, ...] | None:
    """The broadcast shape of `inputs`, as far as it is known; with unknown dimensions, that of the only input that is not a scalar."""
    shapes = [static_shape(value) for value in inputs]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        return np.broadcast_shapes(*known)
    others = [value.shape for value, shape in zip(inputs, shapes, strict=True) if shape != ()]
    return others[0] if len(others) == 1 else None
