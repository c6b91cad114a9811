import numpy as np
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("ij,jk->ik", "2,3", "3,4"),
        ("ij,jk", "2,3", "3,4"),
        ("ij,kj->ki", "2,3", "4,3"),
        ("bhid,bhjd->bhij", "2,3,4,5", "2,3,6,5"),
        ("bthd,bshd->bhts", "2,4,3,5", "2,6,3,5"),
        ("bijk,kjl->bil", "2,3,4,5", "5,4,6"),
        ("ij,jk->k", "2,3", "3,4"),
        ("i,j->ij", "3", "4"),
        ("i,i->", "3", "3"),
        ("ij,ij->ij", "2,3", "2,3"),
        ("ab c, c d -> d a b", "2,3,4", "4,5"),
    ],
)
def test_einsum_of_two_operands_becomes_a_matmul(equation: str, left: str, right: str) -> None:
    shapes = [[int(size) for size in text.split(",")] for text in (left, right)]
    result = np.einsum(equation.replace(" ", ""), *(np.zeros(shape) for shape in shapes)).shape
    output = f"[{','.join(map(str, result))}]" if result else ""
    model = parse(f'g (float[{left}] a, float[{right}] b) => (float{output} y) {{ y = Einsum<equation = "{equation}">(a, b) }}')
    after = get_pass("replace_einsum_with_matmul")(model)
    assert "MatMul" in op_types(after)
    assert "Einsum" not in op_types(after)
    assert_same_results(model, after)
    assert_valid(after)


@pytest.mark.parametrize(
    ("equation", "inputs"),
    [
        ("ij->ji", "float[2,3] a"),
        ("ij,jk,kl->il", "float[2,3] a, float[3,4] b, float[4,2] c"),
        ("...ij,...jk->...ik", "float[2,3] a, float[3,4] b"),
        ("ii,ij->j", "float[3,3] a, float[3,4] b"),
        ("ij,jk->ik", "float[n,3] a, float[3,4] b"),
        ("ij,jk->ik", "float[2,1] a, float[3,4] b"),
    ],
)
def test_other_einsums_are_kept(equation: str, inputs: str) -> None:
    names = ", ".join(part.split()[-1] for part in inputs.split(", "))
    model = parse(f'g ({inputs}) => (float[p,q] y) {{ y = Einsum<equation = "{equation}">({names}) }}')
    assert op_types(get_pass("replace_einsum_with_matmul")(model)) == ["Einsum"]
