"""`replace_gemm_with_matmul`: a general product is a product of matrices and a sum."""

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, input_at, static_shape
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.edges import float_attribute, int_attribute
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.replacement.rewriting import Rewriting
from stoker.compiler.precision.representation import float8_use

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@register("replace_gemm_with_matmul", before=("float_to_fp8",))
class ReplaceGemmWithMatmul(Pass):
    """Replaces Gemm by MatMul and Add, with Transpose and Mul where its attributes ask for them; constants take those up. Floats only.

    Tolerance is rounding: in FP16 the product is stored before the sum. One that computes in fp8 stays.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _replace, "Gemm")


def _replace(editor: GraphEditor, node: ir.Node) -> bool:
    left, right, bias = node.inputs[0], node.inputs[1], input_at(node, 2)
    if left is None or right is None or left.dtype not in _FLOATS or float8_use(node) is not None:
        return False
    writing, whole = Rewriting(editor, node), node.outputs[0].shape
    alpha, beta = float_attribute(node, "alpha", 1.0), float_attribute(node, "beta", 1.0)
    if int_attribute(node, "transA", 0):
        left = _transposed(writing, left, "left")
    if int_attribute(node, "transB", 0):
        right = _transposed(writing, right, "right")
    if constant_of(right) is not None:
        right, alpha = _scaled(writing, right, alpha, "weights"), 1.0
    result = _scaled(writing, writing.op("MatMul", left, right, shape=whole), alpha, "alpha")
    if bias is not None and beta != 0:
        result = writing.op("Add", result, _scaled(writing, bias, beta, "bias"), shape=whole)
    return writing.finish(result)


def _transposed(writing: Rewriting, value: ir.Value, role: str) -> ir.Value:
    array, shape = constant_of(value), static_shape(value)
    if array is not None:
        return writing.array(array.T, f"{role}_transposed")
    return writing.op("Transpose", value, perm=[1, 0], shape=None if shape is None else shape[::-1])


def _scaled(writing: Rewriting, value: ir.Value, factor: float, role: str) -> ir.Value:
    array = constant_of(value)
    if factor == 1:
        return value
    if array is not None:
        return writing.array((array.astype(np.float64) * factor).astype(array.dtype), f"{role}_scaled")
    return writing.op("Mul", value, writing.number(factor, value, f"{role}_factor"), shape=value.shape)
