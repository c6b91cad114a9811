"""`fuse_bn_into_gemm`: a batch normalisation after a fully connected layer goes into its weights."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, input_at, only_use, producer_of, rank_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute, is_private
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("fuse_bn_into_gemm")
class FuseBnIntoGemm(Pass):
    """Folds BatchNormalization into the constant weights and bias of the Gemm or MatMul before it.

    Conditions: the weights (and the bias) are constants that nothing else reads; the product is read by the normalisation only and has two
    dimensions, so that the channels are its columns; the normalisation is in inference mode. A MatMul becomes a Gemm, for the bias.
    Tolerance is rounding: the folding is done in double precision.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _fuse, "BatchNormalization")


def _fuse(editor: GraphEditor, norm: ir.Node) -> bool:
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
    """(a, b) where the normalisation is a*x + b, each of shape [channels]; None if its statistics are not constant."""
    arrays: list[NDArray[Any] | None] = [constant_of(value) for value in norm.inputs[1:5]]
    scale, offset, mean, variance = (None if array is None else array.astype(np.float64) for array in arrays)
    if scale is None or offset is None or mean is None or variance is None:
        return None
    factor = scale / np.sqrt(variance + float_attribute(norm, "epsilon", 1e-5))
    return factor, offset - mean * factor
