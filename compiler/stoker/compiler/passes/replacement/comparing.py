"""Shared code of the two passes that replace a comparison with "or equal"."""

import onnx_ir as ir

from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.replacement.rewriting import Rewriting


def split_or_equal(editor: GraphEditor, node: ir.Node, strict: str, opposite: str) -> bool:
    """Replaces `node` by operator `strict` or Equal; for integers by the negation of `opposite`, which for floats NaN forbids."""
    left, right = node.inputs
    if left is None or right is None or left.dtype is None:
        return False
    writing, shape, truth = Rewriting(editor, node), node.outputs[0].shape, ir.DataType.BOOL
    if not left.dtype.is_floating_point():
        return writing.finish(writing.op("Not", writing.op(opposite, left, right, dtype=truth, shape=shape), shape=shape))
    is_beyond = writing.op(strict, left, right, dtype=truth, shape=shape)
    is_equal = writing.op("Equal", left, right, dtype=truth, shape=shape)
    return writing.finish(writing.op("Or", is_beyond, is_equal, shape=shape))
