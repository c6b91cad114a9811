"""Batch norms, factors and casts go into constants that the nodes before them own."""

import numpy as np
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse

RANDOM = np.random.default_rng(3)
NORM = {name: RANDOM.uniform(0.5, 2.0, 5).astype(np.float32) for name in ("scale", "offset", "mean", "variance")}
WEIGHTS = RANDOM.standard_normal((4, 5)).astype(np.float32)
BN = "y = BatchNormalization(p, scale, offset, mean, variance)"


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        (f"p = Gemm(x, w, b) {BN}", {"w": WEIGHTS, "b": WEIGHTS[0]}),
        (f"p = Gemm<transB=1>(x, w, b) {BN}", {"w": WEIGHTS.T, "b": WEIGHTS[:1]}),
        (f"p = Gemm<alpha=0.5, beta=2.0>(x, w, b) {BN}", {"w": WEIGHTS, "b": np.float32(3)}),
        (f"p = Gemm<beta=0.0>(x, w, b) {BN}", {"w": WEIGHTS, "b": WEIGHTS[0]}),
        (f"p = Gemm(x, w) {BN}", {"w": WEIGHTS}),
        (f"p = MatMul(x, w) {BN}", {"w": WEIGHTS}),
    ],
)
def test_batch_norm_is_folded_into_the_layer_before_it(body, constants):
    model = parse(f"g (float[3,4] x) => (float[3,5] y) {{ {body} }}", NORM | constants)
    if "MatMul" in body:
        model.graph.value_info.extend(parse("g (float[3,4] x) => (float[3,5] p) { p = Relu(x) }").graph.output)
    else:
        model.graph.value_info.extend(parse("g (float[3,4] x) => (float[3,5] p) { p = Relu(x) }").graph.output)
    fused = get_pass("fuse_bn_into_gemm")(model)
    assert op_types(fused) == ["Gemm"]
    assert len(fused.graph.initializer) == 2
    assert_valid(fused)
    assert_same_results(model, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[3,4] x) => (float[3,5] y, float[3,5] p) { p = Gemm(x, w) " + BN + " }",
        "g (float[3,4] x) => (float[3,5] y, float[3,5] z) { p = Gemm(x, w) z = Relu(p) " + BN + " }",
        "g (float[3,4] x) => (float[3,5] y, float[3,5] z) { p = Gemm(x, w) z = Gemm(x, w) " + BN + " }",
        "g (float[3,4] x, float[4,5] w) => (float[3,5] y) { p = Gemm(x, w) " + BN + " }",
    ],
    ids=["product is an output", "second reader", "shared weights", "weights are an input"],
)
def test_batch_norm_with_visible_intermediates_is_kept(graph):
    is_input = "float[4,5] w" in graph
    model = parse(graph, NORM if is_input else NORM | {"w": WEIGHTS})
    model.graph.value_info.extend(parse("g (float[3,4] x) => (float[3,5] p) { p = Relu(x) }").graph.output)
    assert op_types(get_pass("fuse_bn_into_gemm")(model)) == op_types(model)


def test_batch_norm_over_the_middle_of_three_dimensions_is_kept():
    model = parse(f"g (float[3,5,4] x) => (float[3,5,5] y) {{ p = MatMul(x, w) {BN} }}", NORM | {"w": WEIGHTS})
    model.graph.value_info.extend(parse("g (float[3,4] x) => (float[3,5,5] p) { p = Relu(x) }").graph.output)
    assert op_types(get_pass("fuse_bn_into_gemm")(model)) == op_types(model)


def test_onehot_returns_the_cast_type_directly():
    body = "h = OneHot<axis=0>(x, depth, values) y = Cast<to=1>(h)"
    model = parse(f"g (int64[3] x) => (float[4,3] y) {{ {body} }}", {"depth": np.int64(4), "values": np.array([0, 7])})
    fused = get_pass("fuse_cast_into_onehot")(model)
    assert op_types(fused) == ["OneHot"]
    assert_valid(fused)
    assert_same_results(model, fused, rtol=0, atol=0)


def test_onehot_with_other_readers_keeps_its_type():
    body = "h = OneHot(x, depth, values) y = Cast<to=1>(h)"
    model = parse(f"g (int64[3] x) => (float[3,4] y, int64[3,4] h) {{ {body} }}", {"depth": np.int64(4), "values": np.array([0, 1])})
    assert op_types(get_pass("fuse_cast_into_onehot")(model)) == ["OneHot", "Cast"]


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ("p = MatMul(x, w) y = Mul(p, c)", np.float32(0.5)),
        ("p = MatMul(x, w) y = Mul(c, p)", WEIGHTS[0]),
        ("p = MatMul(x, w) y = Mul(p, c)", WEIGHTS[:1].reshape(1, 1, 5)),
        ("p = MatMul(x, w) y = Div(p, c)", np.array([8.0], np.float32)),
        ("p = Mul(x, c) y = MatMul(p, w)", WEIGHTS[:, 0]),
        ("p = Div(x, c) y = MatMul(p, w)", np.float32(4.0)),
    ],
)
def test_factor_is_folded_into_the_weights(body, factor):
    model = parse(f"g (float[2,3,4] x) => (float[2,3,5] y) {{ {body} }}", {"w": WEIGHTS, "c": factor})
    shape = "float[2,3,4]" if body.startswith(("p = Mul(x", "p = Div(x")) else "float[2,3,5]"
    model.graph.value_info.extend(parse(f"g (float[1] x) => ({shape} p) {{ p = Relu(x) }}").graph.output)
    fused = get_pass("fuse_mul_into_matmul")(model)
    assert op_types(fused) == ["MatMul"]
    assert len(fused.graph.initializer) == 1
    assert_valid(fused)
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "factor", "outputs"),
    [
        ("p = MatMul(x, w) y = Mul(p, c)", np.array([[2], [3], [4]], np.float32), ""),
        ("p = MatMul(x, w) y = Mul(p, c)", np.float32(2), ", float[2,3,5] p"),
        ("p = MatMul(x, w) y = Mul(p, c) q = Mul(p, p)", np.float32(2), ", float[2,3,5] q"),
        ("p = MatMul(x, w) y = Mul(p, c) q = MatMul(x, w)", np.float32(2), ", float[2,3,5] q"),
        ("p = MatMul(x, w) y = Div(c, p)", np.float32(2), ""),
        ("p = MatMul(x, w) y = Div(p, c)", np.float32(0), ""),
        ("p = MatMul(x, w) y = Mul(p, c)", np.ones((1, 1, 1, 1), np.float32), ""),
    ],
    ids=["one number a row", "product is an output", "second reader", "shared weights", "reciprocal", "by zero", "adds a dimension"],
)
def test_factor_is_kept_if_folding_would_change_the_result(body, factor, outputs):
    rank = "1,2,3,5" if factor.ndim == 4 else "2,3,5"
    model = parse(f"g (float[2,3,4] x) => (float[{rank}] y{outputs}) {{ {body} }}", {"w": WEIGHTS, "c": factor})
    if " p" not in outputs:
        model.graph.value_info.extend(parse("g (float[1] x) => (float[2,3,5] p) { p = Relu(x) }").graph.output)
    assert op_types(get_pass("fuse_mul_into_matmul")(model)) == op_types(model)
