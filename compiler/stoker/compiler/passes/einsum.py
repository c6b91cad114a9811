"""Reads Einsum's equations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two tensors summed over letters, by the role of each letter.

    Attributes:
        left: The letters of the first operand.
        right: Those of the second.
        output: Those of the result.
        batch: In both operands and in the result, in the order of the result.
        rows: In the first operand and in the result only.
        columns: In the second operand and in the result only.
        summed: In both operands and not in the result.
        left_only: In the first operand alone: summed before the product.
        right_only: The same for the second.
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
    """The roles of the letters of an equation with two operands; None for others, for ellipses and for diagonals (`ii`)."""
    text = equation.replace(" ", "")
    operands, arrow, output = text.partition("->")
    parts = operands.split(",")
    if len(parts) != 2 or "." in text:
        return None
    left, right = parts
    if not arrow:  # without an arrow: the letters that occur once, in order of the alphabet
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
