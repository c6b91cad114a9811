"""`fuse_mul_into_matmul`: a constant factor before or after a product with constant weights goes into the weights."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, is_op, only_use, rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import is_private, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("fuse_mul_into_matmul")
class FuseMulIntoMatmul(Pass):
    """Folds Mul or Div by a constant into the constant weights of the MatMul that it feeds or follows.

    After the product the constant may be one number or one a column; before it, one number or one a row of the weights. The weights must
    be a matrix that nothing else reads, and what lies between the two nodes must not be read elsewhere. Tolerance is rounding.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _fuse, "Mul", "Div")


def _fuse(editor: GraphEditor, node: ir.Node) -> bool:
    parts = split_constant(node)
    if parts is None or (node.op_type == "Div" and parts[1] is not node.inputs[1]):
        return False
    variable, constant = parts
    factor = constant_of(constant)
    if factor is None or factor.dtype.kind != "f" or _adds_dimensions(factor, variable):
        return False
    factor = factor.astype(np.float64)
    if node.op_type == "Div":
        if not np.all(factor):
            return False
        factor = 1.0 / factor
    return _fold_after(editor, node, variable, factor) or _fold_before(editor, node, variable, factor)


def _fold_after(editor: GraphEditor, node: ir.Node, product: ir.Value, factor: NDArray[np.float64]) -> bool:
    matmul = product.producer()
    if matmul is None or not is_op(matmul, "MatMul") or only_use(product) is not node:
        return False
    weights = _own_matrix(matmul)
    columns = None if weights is None else _along_last(factor, weights.shape[1])
    if weights is None or columns is None:
        return False
    _scale_weights(editor, matmul, weights, columns)
    editor.bypass(node.outputs[0], product)
    editor.remove_dead(node)
    return True


def _fold_before(editor: GraphEditor, node: ir.Node, variable: ir.Value, factor: NDArray[np.float64]) -> bool:
    matmul = only_use(node.outputs[0])
    if matmul is None or not is_op(matmul, "MatMul") or matmul.inputs[0] is not node.outputs[0]:
        return False
    weights = _own_matrix(matmul)
    rows = None if weights is None else _along_last(factor, weights.shape[0])
    if weights is None or rows is None:
        return False
    _scale_weights(editor, matmul, weights, rows[:, None])
    matmul.replace_input_with(0, variable)
    editor.remove_dead(node)
    return True


def _own_matrix(matmul: ir.Node) -> NDArray[Any] | None:
    """The right operand, if it is a constant floating-point matrix that only this node reads."""
    weights = matmul.inputs[1]
    array = constant_of(weights) if weights is not None and is_private(weights) else None
    return array if array is not None and array.ndim == 2 and array.dtype.kind == "f" else None


def _adds_dimensions(factor: NDArray[Any], to: ir.Value) -> bool:
    """Whether multiplying by `factor` gives more dimensions than `to` has."""
    rank = rank_of(to)
    return factor.ndim > 1 if rank is None else factor.ndim > rank


def _along_last(factor: NDArray[np.float64], size: int) -> NDArray[np.float64] | None:
    """`factor` as one number for each index of the last dimension, or None where it varies along another one."""
    if factor.size == 1:
        return np.full(size, factor.reshape(()))
    return factor.reshape(-1) if factor.shape[-1] == size == factor.size else None


def _scale_weights(editor: GraphEditor, matmul: ir.Node, weights: NDArray[Any], factor: NDArray[np.float64]) -> None:
    old = matmul.inputs[1]
    scaled = (weights.astype(np.float64) * factor).astype(weights.dtype)
    matmul.replace_input_with(1, editor.constant(matmul, scaled, f"{'weights' if old is None else old.name}/scaled"))
    if old is not None:
        producer = old.producer()
        editor.remove_dead(producer)
        editor.drop_unused_initializers([old])
