"""`post_expand`: element by element work is done before a tensor is made larger, not after."""

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op, rank_of
from stoker.compiler.passes.matching.constants import scalar_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import reader_of, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less", "And", "Or")


@register("post_expand")
class PostExpand(Pass):
    """Moves an Expand (or Tile) behind the element by element operators that read it, so that they run on the smaller tensor. Exact.

    Operators of one input, and those of two whose other input is one constant number. The Expand must be read by that operator alone.
    Upstream documents no more of this pass than its name.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _move_all, "Expand", "Tile")


def _move_all(editor: GraphEditor, expand: ir.Node) -> bool:
    small, sizes = expand.inputs[0], expand.inputs[1]
    changed = False
    while small is not None and (reader := reader_of(expand.outputs[0], *_UNARY, *_BINARY)) is not None:
        inputs = _inputs_on(reader, expand.outputs[0], small)
        if inputs is None:
            break
        done = editor.insert(
            expand,
            reader.op_type,
            inputs,
            attributes={name: attribute.value for name, attribute in reader.attributes.items()},
            name=reader.name,
            like=small,
            dtype=reader.outputs[0].dtype,
            metadata=reader.metadata_props,
        )
        whole = editor.insert(reader, expand.op_type, [done, sizes], name=expand.name, like=reader.outputs[0])
        editor.replace(reader.outputs[0], whole)
        editor.remove_dead(reader)
        moved = whole.producer()
        assert moved is not None
        expand, small, changed = moved, done, True
    return changed


def _inputs_on(reader: ir.Node, large: ir.Value, small: ir.Value) -> list[ir.Value | None] | None:
    """The inputs of `reader` with `small` for `large`, or None where it does not work element by element on it."""
    if is_op(reader, *_BINARY):
        parts = split_constant(reader)
        if parts is None or scalar_of(parts[1]) is None or (rank_of(parts[1]) or 0) > (rank_of(small) or 0):
            return None
    return [small if value is large else value for value in reader.inputs]
