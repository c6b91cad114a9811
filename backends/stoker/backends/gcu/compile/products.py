"""Convolutions and matrix products as blocks of sums, and the operands that a cluster loads for them (see `cost_model`)."""

import math
from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.lowering.typed_graph import TensorFacts

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "Einsum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The products of one sample: `groups` times `rows` x `columns` sums over `depth` elements.

    Attributes:
        groups: Independent products: of a grouped convolution, or of a batched product without weights.
        rows, columns, depth: The sizes of one product.
        reuse: Results that read the same element of the left operand at one place of a convolution's window; 1 for products.
        element_bytes: Bytes of an element.
    """

    groups: float
    rows: float
    columns: int
    depth: int
    reuse: float
    element_bytes: float

    def operand_bytes(self, block_bytes: float) -> float:
        """Returns the bytes of both operands that are loaded with result blocks of `block_bytes`."""
        results = max(block_bytes / self.element_bytes, 1.0)
        block_rows = min(self.rows, math.sqrt(results * self.reuse))
        block_columns = min(self.columns, math.sqrt(results / self.reuse))
        sums = self.groups * self.rows * self.columns * self.depth
        return self.element_bytes * sums * (1 / block_rows + 1 / (self.reuse * block_columns))


def product_of(node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts, batch_size: int) -> Product | None:
    """Returns the products of `node` for one of `batch_size` samples; None if it has none."""
    left = inputs[0] if inputs else None
    right = inputs[1] if len(inputs) > 1 else None
    if left is None or right is None or not left.shape or not right.shape or not output.elements:
        return None
    if node.op_type == "Conv":
        groups = node.attributes.get_int("group", 1)
        window, strides = right.shape[2:], node.attributes.get_ints("strides", ())
        reuse = math.prod(window) / math.prod(strides) if strides else math.prod(window)
        rows = math.prod(output.shape[2:]) * output.shape[0] / batch_size
        return _product(groups, rows, max(output.shape[1] // groups, 1), math.prod(right.shape[1:]), max(reuse, 1.0), left)
    if node.op_type == "ConvTranspose":
        groups = node.attributes.get_int("group", 1)
        rows = math.prod(left.shape[2:]) * left.shape[0] / batch_size
        return _product(groups, rows, math.prod(right.shape[1:]), max(left.shape[1] // groups, 1), 1.0, left)
    if node.op_type not in PRODUCTS or len(right.shape) < 2 or not output.shape:
        return None
    transposed = node.attributes.get_int("transA", 0) if node.op_type == "Gemm" else 0
    depth, columns = left.shape[0 if transposed else -1], output.shape[-1]
    groups = 1 if right.is_constant else max(right.elements // (depth * columns), 1)
    rows = output.elements / columns / groups
    per_sample = (groups, rows / batch_size) if groups < batch_size else (groups / batch_size, rows)
    return _product(per_sample[0], per_sample[1], columns, depth, 1.0, left)


def _product(groups: float, rows: float, columns: int, depth: int, reuse: float, left: TensorFacts) -> Product:
    return Product(groups=groups, rows=max(rows, 1.0), columns=max(columns, 1), depth=depth, reuse=reuse, element_bytes=left.element_bytes)
