"""Cutting one matrix product into pieces that run one after another: what `serialize_matmul` and `serialize_matmul_add` share."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import SERIAL_OF, SERIAL_PIECE
from stoker.compiler.passes.edit import constant_of, describe, static_shape
from stoker.compiler.passes.matching.edges import is_private
from stoker.compiler.passes.matching.editing import GraphEditor


def parse_factor(text: str, *, option: str) -> int:
    """A number of pieces.

    Raises:
        OptionError: it is no whole number of at least 1.
    """
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"{option}: the factor must be a whole number of at least 1, not '{text}'")
    return int(text)


def piece_marks(node: ir.Node, index: int, count: int) -> dict[str, str]:
    """Metadata of piece `index`: that of the whole node (its precision, its device), and what it is a piece of."""
    return dict(node.metadata_props) | {SERIAL_OF: node.name or "", SERIAL_PIECE: f"{index}/{count}"}


def split_operand(editor: GraphEditor, node: ir.Node, value: ir.Value, axis: int, count: int, *, option: str) -> list[ir.Value]:
    """`count` equal parts of an operand of `node` along `axis` (from the end, negative).

    A constant that only this node reads is cut now, so that no second copy of it is kept; anything else by a Split.

    Raises:
        PassError: the size of the dimension is not known, or `count` does not divide it.
    """
    shape = static_shape(value)
    if shape is None:
        raise PassError(f"{option}: the shape of '{value.name}', an operand of {describe(node)}, is not known; fix the input shapes")
    if len(shape) < -axis:
        raise PassError(f"{option}: '{value.name}', an operand of {describe(node)}, has no dimension to cut: its shape is {list(shape)}")
    size = shape[axis]
    if size % count:
        raise PassError(
            f"{option}: {count} pieces do not divide dimension {len(shape) + axis} of '{value.name}' (size {size}), {describe(node)}"
        )
    name = f"{node.name}/{value.name}"
    array = constant_of(value) if is_private(value) else None
    if array is not None:
        return [editor.constant(node, part, f"{name}/{index}") for index, part in enumerate(np.split(array, count, axis=axis))]
    part_shape = list(shape)
    part_shape[axis] = size // count
    return list(editor.insert_split(node, value, [size // count] * count, axis, name=f"{name}/Split", shapes=[part_shape] * count))
