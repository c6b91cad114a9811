"""The pass `replace_einsum_with_matmul` replaces a sum of products over shared letters by a matrix product."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import Chain, bypass, new_constant, static_shape
from stoker.compiler.passes.registry import node_pass


@dataclass(frozen=True, slots=True)
class Product:
    """The letters of a product of two tensors, by their role.

    Attributes:
        left: The letters of the first operand.
        right: The letters of the second operand.
        output: The letters of the result.
        batch: Letters in both operands and in the result, in the order of the result.
        rows: Letters in the first operand and in the result only.
        columns: Letters in the second operand and in the result only.
        summed: Letters in both operands and not in the result.
        left_only: Letters in the first operand only; they are summed before the product.
        right_only: Letters in the second operand only; they are summed before the product.
    """

    left: str
    right: str
    output: str
    batch: str
    rows: str
    columns: str
    summed: str
    left_only: str
    right_only: str


def parse_product(equation: str) -> Product | None:
    """Returns the roles of the letters of an equation with two operands; None for other equations, ellipses and diagonals (`ii`)."""
    text = equation.replace(" ", "")
    operands, arrow, output = text.partition("->")
    parts = operands.split(",")
    if len(parts) != 2 or "." in text:
        return None
    left, right = parts
    if not arrow:  # without an arrow, the result has the letters that occur once, in alphabetical order
        output = "".join(sorted(letter for letter in {*left, *right} if (left + right).count(letter) == 1))
    if any(len(set(letters)) != len(letters) for letters in (left, right, output)):
        return None
    return Product(
        left=left,
        right=right,
        output=output,
        batch="".join(letter for letter in output if letter in left and letter in right),
        rows="".join(letter for letter in output if letter in left and letter not in right),
        columns="".join(letter for letter in output if letter in right and letter not in left),
        summed="".join(letter for letter in left if letter in right and letter not in output),
        left_only="".join(letter for letter in left if letter not in right and letter not in output),
        right_only="".join(letter for letter in right if letter not in left and letter not in output),
    )


@node_pass("Einsum")
def replace_einsum_with_matmul(node: ir.Node) -> bool:
    """Replaces an Einsum of two operands by MatMul, with Transpose, Reshape or ReduceSum around it where required.

    Einsums with another number of operands, ellipses, diagonals, variable shapes, or broadcast dimensions of size 1 stay.
    """
    equation = node.attributes.get("equation")
    product = parse_product(equation.as_string()) if equation is not None and not equation.is_ref() else None
    left, right = (static_shape(value) for value in node.inputs) if product is not None else (None, None)
    if product is None or left is None or right is None:
        return False
    sizes = dict(zip(product.left, left, strict=True))
    if any(sizes.setdefault(letter, size) != size for letter, size in zip(product.right, right, strict=True)):
        return False
    return bypass(node, _Writer(node, sizes).write(product))


class _Writer:
    """Adds the nodes of one product in front of the Einsum that they replace."""

    def __init__(self, node: ir.Node, sizes: dict[str, int]) -> None:
        self._node, self._sizes = node, sizes
        self._chain = Chain(node)

    def write(self, product: Product) -> ir.Value:
        left, right = self._node.inputs
        assert left is not None, "the caller saw its shape"
        assert right is not None, "the caller saw its shape"
        a = self._operand(left, product.left, product.left_only, (product.batch, product.rows, product.summed), "left")
        b = self._operand(right, product.right, product.right_only, (product.batch, product.summed, product.columns), "right")
        result = self._chain.add("MatMul", [a, b], "product")
        letters = product.batch + product.rows + product.columns
        if len(product.rows) != 1 or len(product.columns) != 1:
            result = self._reshaped(result, [self._sizes[letter] for letter in letters], "unfolded")
        return self._in_order(result, letters, product.output, "ordered")

    def _operand(self, value: ir.Value, letters: str, alone: str, groups: tuple[str, str, str], role: str) -> ir.Value:
        """Returns `value` as a stack of matrices: the batch letters stay separate, and each of the other two groups becomes one
        dimension.
        """
        if alone:
            axes = new_constant(self._node, np.array([letters.index(letter) for letter in alone], np.int64), f"{role}_axes")
            value = self._chain.add("ReduceSum", [value, axes], f"{role}_summed", keepdims=0)
            letters = "".join(letter for letter in letters if letter not in alone)
        batch, rows, columns = groups
        value = self._in_order(value, letters, batch + rows + columns, f"{role}_ordered")
        if len(rows) == 1 and len(columns) == 1:
            return value
        return self._reshaped(value, [*(self._sizes[letter] for letter in batch), self._size(rows), self._size(columns)], f"{role}_folded")

    def _in_order(self, value: ir.Value, letters: str, wanted: str, role: str) -> ir.Value:
        if letters == wanted:
            return value
        return self._chain.add("Transpose", [value], role, perm=[letters.index(letter) for letter in wanted])

    def _reshaped(self, value: ir.Value, shape: Sequence[int], role: str) -> ir.Value:
        return self._chain.add("Reshape", [value, new_constant(self._node, np.array(shape, np.int64), f"{role}_shape")], role)

    def _size(self, letters: str) -> int:
        return prod(self._sizes[letter] for letter in letters)
