"""Compress gets a static form, and Expand moves behind elementwise operators."""

import numpy as np
import onnx
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse, run_onnx


@pytest.mark.parametrize(("axis", "shape"), [("<axis=1>", "float[2,K,3]"), ("<axis=-2>", "float[2,K,3]"), ("", "float[K]")])
def test_constant_row_selection_becomes_a_gather(axis, shape):
    model = parse(f"g (float[2,4,3] x) => ({shape} y) {{ y = Compress{axis}(x, c) }}", {"c": np.array([True, False, True, True])})
    static = get_pass("compress_pattern")(model)
    assert op_types(static)[-1] == "Gather"
    assert "Compress" not in op_types(static)
    assert_same_results(model, static, rtol=0, atol=0)


@pytest.mark.parametrize("chosen", [[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
@pytest.mark.parametrize("axis", [0, 1])
def test_selected_rows_come_first_followed_by_zeros(chosen, axis):
    shape = [3, 3]
    shape[axis] = 4
    sizes = ",".join(map(str, shape))
    free = ",".join("K" if index == axis else "3" for index in range(2))
    model = parse(f"g (float[{sizes}] x, bool[4] c) => (float[{free}] y) {{ y = Compress<axis={axis}>(x, c) }}")
    static = get_pass("compress_pattern")(model)
    feeds = {"x": np.arange(1, 13, dtype=np.float32).reshape(shape), "c": np.array(chosen, bool)}
    expected, got = run_onnx(model, feeds)["y"], run_onnx(static, feeds)["y"]
    assert got.shape == tuple(shape)
    first, rest = np.split(got, [sum(chosen)], axis=axis)
    np.testing.assert_array_equal(first, expected)
    assert not rest.any()
    assert [dim.dim_value for dim in static.graph.output[0].type.tensor_type.shape.dim] == shape
    assert_valid(static)


def test_compress_of_unknown_size_is_kept():
    model = parse("g (float[N,3] x, bool[M] c) => (float[K,3] y) { y = Compress<axis=0>(x, c) }")
    assert op_types(get_pass("compress_pattern")(model)) == ["Compress"]


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("e = Expand(x, s) y = Relu(e)", ["Relu", "Expand"]),
        ("e = Expand(x, s) a = Neg(e) b = Mul(a, k) y = Sub(k, b)", ["Neg", "Mul", "Sub", "Expand"]),
        ("e = Tile(x, r) y = Exp(e)", ["Exp", "Tile"]),
        ("e = Expand(x, s) y = Add(e, row)", ["Expand", "Add"]),
        ("e = Expand(x, s) y = Mul(e, e)", ["Expand", "Mul"]),
        ("e = Expand(x, s) y = Softmax<axis=0>(e)", ["Expand", "Softmax"]),
    ],
)
def test_expand_moves_behind_elementwise_operators(body, ops):
    constants = {"s": np.array([4, 3]), "r": np.array([4, 1]), "k": np.float32(2), "row": np.array([1, 2, 3], np.float32)}
    used = {name: array for name, array in constants.items() if f"{name})" in body or f"({name}," in body or f", {name}" in body}
    model = onnx.shape_inference.infer_shapes(parse(f"g (float[1,3] x) => (float[4,3] y) {{ {body} }}", used), data_prop=True)
    moved = get_pass("post_expand")(model)
    assert op_types(moved) == ops
    assert_valid(moved)
    assert_same_results(model, moved, rtol=0, atol=0)


def test_expand_with_several_readers_or_an_output_is_kept():
    for outputs, body in (
        ("float[4,3] y, float[4,3] e", "e = Expand(x, s) y = Relu(e)"),
        ("float[4,3] y, float[4,3] z", "e = Expand(x, s) y = Relu(e) z = Neg(e)"),
    ):
        model = parse(f"g (float[1,3] x) => ({outputs}) {{ {body} }}", {"s": np.array([4, 3])})
        assert op_types(get_pass("post_expand")(model)) == op_types(model)
