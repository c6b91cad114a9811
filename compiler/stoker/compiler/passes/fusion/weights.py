"""Passes that fold factors, normalisations and casts into constants."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, input_at, is_op, only_use, producer_of, rank_of
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute, is_private, split_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import rewrite_pass


@rewrite_pass("BatchNormalization")
def fuse_bn_into_gemm(editor: GraphEditor, norm: ir.Node) -> bool:
    """Folds BatchNormalization into the constant weights and bias of the Gemm or MatMul before it.

    Conditions: the weights (and the bias) are constants that nothing else reads; the product is read by the normalisation only and has two
    dimensions, so that the channels are its columns; the normalisation is in inference mode. A MatMul becomes a Gemm, for the bias.
    Tolerance is rounding: the folding is done in double precision.
    """
    product = producer_of(norm.inputs[0], "Gemm", "MatMul")
    if product is None or only_use(product.outputs[0]) is not norm or any(output.uses() for output in norm.outputs[1:]):
        return False
    if int_attribute(norm, "training_mode", 0) or rank_of(product.outputs[0]) != 2 or rank_of(product.inputs[0]) != 2:
        return False
    weights, bias = product.inputs[1], input_at(product, 2)
    if weights is None or not is_private(weights) or (bias is not None and not is_private(bias)):
        return False
    weight_array, bias_array = constant_of(weights), constant_of(bias)
    folded = _affine(norm)
    if weight_array is None or weight_array.ndim != 2 or (bias is not None and bias_array is None) or folded is None:
        return False
    factor, shift = folded
    transposed = int_attribute(product, "transB", 0) == 1
    beta = float_attribute(product, "beta", 1.0)
    new_weights = weight_array.astype(np.float64) * (factor[:, None] if transposed else factor)
    old_bias = 0.0 if bias_array is None else beta * bias_array.astype(np.float64)
    kept = {name: value for name, value in product.attributes.items() if name != "beta"}
    dtype = weight_array.dtype
    name = product.name or norm.name or "Gemm"
    fused = editor.insert(
        norm,
        "Gemm",
        [
            product.inputs[0],
            editor.constant(norm, new_weights.astype(dtype), f"{weights.name}/normalised"),
            editor.constant(norm, (old_bias * factor + shift).astype(dtype), f"{name}/normalised_bias"),
        ],
        attributes={key: attribute.value for key, attribute in kept.items()},
        name=name,
        like=norm.outputs[0],
        metadata=product.metadata_props,
    )
    editor.replace(norm.outputs[0], fused)
    editor.remove_dead(norm)
    return True


def _affine(norm: ir.Node) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Returns (a, b) where the normalisation is a*x + b, each of shape [channels]; None if its statistics are not constant."""
    arrays: list[NDArray[Any] | None] = [constant_of(value) for value in norm.inputs[1:5]]
    scale, offset, mean, variance = (None if array is None else array.astype(np.float64) for array in arrays)
    if scale is None or offset is None or mean is None or variance is None:
        return None
    factor = scale / np.sqrt(variance + float_attribute(norm, "epsilon", 1e-5))
    return factor, offset - mean * factor


@rewrite_pass("Mul", "Div")
def fuse_mul_into_matmul(editor: GraphEditor, node: ir.Node) -> bool:
    """Folds Mul or Div by a constant into the constant weights of the MatMul that it feeds or follows.

    After the product the constant may be one number or one a column; before it, one number or one a row of the weights. The weights must
    be a matrix that nothing else reads, and what lies between the two nodes must not be read elsewhere. Tolerance is rounding.
    """
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
    """Returns the right operand, if it is a constant floating-point matrix that only this node reads."""
    weights = matmul.inputs[1]
    array = constant_of(weights) if weights is not None and is_private(weights) else None
    return array if array is not None and array.ndim == 2 and array.dtype.kind == "f" else None


def _adds_dimensions(factor: NDArray[Any], to: ir.Value) -> bool:
    """Returns whether the product of `factor` and `to` has more dimensions than `to`."""
    rank = rank_of(to)
    return factor.ndim > 1 if rank is None else factor.ndim > rank


def _along_last(factor: NDArray[np.float64], size: int) -> NDArray[np.float64] | None:
    """Returns `factor` as one number for each index of the last dimension; None if it varies along another dimension."""
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


@rewrite_pass("Cast")
def fuse_cast_into_onehot(editor: GraphEditor, cast: ir.Node) -> bool:
    """Casts OneHot's two constant values instead of its result. Exact: OneHot only copies them.

    The OneHot must be read by the Cast alone, and its values must be constant.
    """
    onehot = producer_of(cast.inputs[0], "OneHot")
    if onehot is None or only_use(onehot.outputs[0]) is not cast:
        return False
    values, target = constant_of(onehot.inputs[2]), ir.DataType(cast.attributes["to"].as_int())
    if values is None or target is ir.DataType.STRING:
        return False
    fused = editor.insert(
        cast,
        "OneHot",
        [onehot.inputs[0], onehot.inputs[1], editor.constant(cast, values.astype(target.numpy()), f"{onehot.name or 'OneHot'}/values")],
        attributes={key: attribute.value for key, attribute in onehot.attributes.items()},
        name=onehot.name,
        like=cast.outputs[0],
        dtype=target,
        metadata=onehot.metadata_props,
    )
    editor.replace(cast.outputs[0], fused)
    editor.remove_dead(cast)
    return True
