"""Operators are replaced by others that compute the same, or are kept."""

import re

import numpy as np
import onnx
import pytest

from stoker.compiler.passes import PassManager, get_pass
from tests.fakes.graphs import after_pass, as_ir, assert_same_results, is_kept, op_types, parse, random_feeds, run_onnx

RANDOM = np.random.default_rng(7)
INF, NAN = np.inf, np.nan
EDGES = np.array([-INF, -3.4e38, -2.5, -1.5, -0.5, -0.0, 0.0, 0.49999997, 0.5, 1.5, 2.5, 1e30, INF, NAN], np.float32)


NORM = {name: RANDOM.uniform(0.5, 2.0, 3).astype(np.float32) for name in ("s", "b", "m", "v")}


@pytest.mark.parametrize("shape", ["2,3", "2,3,4", "2,3,4,4"])
def test_batch_norm_becomes_a_factor_and_a_shift(shape: str) -> None:
    model = parse(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }}", NORM)
    made = after_pass("replace_bn_with_mul_add", model)
    assert op_types(made) == ["Mul", "Add"]
    assert len(made.graph.initializer) == 2
    assert_same_results(model, made, rtol=1e-5, atol=1e-5)


def test_batch_norm_with_computed_statistics_is_kept() -> None:
    model = parse("g (float[2,3] x, float[3] s) => (float[2,3] y) { y = BatchNormalization(x, s, b, m, v) }", {k: NORM[k] for k in "bmv"})
    assert is_kept("replace_bn_with_mul_add", model)


def test_cast_like_becomes_a_cast() -> None:
    model = parse("g (float[2] x, int32[1] t) => (int32[2] y) { y = CastLike(x, t) }")
    made = after_pass("replace_castlike", model)
    assert op_types(made) == ["Cast"]
    assert_same_results(model, made, rtol=0, atol=0)


@pytest.mark.parametrize(("bounds", "ops"), [("x, low", ["Max"]), ("x, , high", ["Min"]), ("x", ["Identity"])])
def test_one_sided_clip_becomes_a_maximum_or_minimum(bounds: str, ops: list[str]) -> None:
    used = {name: np.float32(value) for name, value in (("low", -1), ("high", 1)) if name in bounds}
    model = parse(f"g (float[12] x) => (float[12] y) {{ y = Clip({bounds}) }}", used)
    made = after_pass("replace_clip_empty_inputs", model)
    assert op_types(made) == ops
    assert_same_results(model, made, {"x": EDGES[~np.isinf(EDGES)]}, rtol=0, atol=0)


@pytest.mark.parametrize("low", [np.float32(0), np.array([0], np.float32)])
def test_clip_with_two_bounds_or_a_bound_with_dimensions_is_kept(low: np.ndarray) -> None:
    bounds, used = ("low, low", {"low": low}) if low.ndim == 0 else ("low", {"low": low})
    model = parse(f"g (float[2] x) => (float[2] y) {{ y = Clip(x, {bounds}) }}", used)
    assert not get_pass("replace_clip_empty_inputs").apply(as_ir(model))


@pytest.mark.parametrize(("source", "target"), [("float", 1), ("float", 6), ("int32", 1), ("int64", 7), ("uint8", 10)])
def test_cast_to_bool_and_back_becomes_a_comparison_with_zero(source: str, target: int) -> None:
    result = onnx.helper.tensor_dtype_to_string(target).split(".")[1].lower()
    model = parse(f"g ({source}[4] x) => ({result}[4] y) {{ b = Cast<to = 9>(x) y = Cast<to = {target}>(b) }}")
    made = after_pass("replace_consecutive_cast_with_notzero", model)
    assert op_types(made) == ["Equal", "Where"]
    values = np.array([0, -0.0, NAN, INF], np.float32) if source == "float" else [0, 1, 2, 200]
    assert_same_results(model, made, {"x": np.array(values).astype({"float": "f4"}.get(source, source))}, rtol=0, atol=0)


def test_bool_with_other_readers_and_other_casts_are_kept() -> None:
    model = parse("g (float[4] x) => (float[4] y, bool[4] b) { b = Cast<to = 9>(x) y = Cast<to = 1>(b) }")
    assert op_types(after_pass("replace_consecutive_cast_with_notzero", model)) == ["Cast", "Equal", "Where"]
    assert is_kept(
        "replace_consecutive_cast_with_notzero", parse("g (float[4] x) => (float[4] y) { b = Cast<to = 6>(x) y = Cast<to = 1>(b) }")
    )


@pytest.mark.parametrize("divisor", [np.float32(8), np.array([3, -7], np.float32), np.array([[0.1], [1e20]], np.float32)])
def test_division_by_a_constant_becomes_a_product(divisor: np.ndarray) -> None:
    model = parse("g (float[2,2] x) => (float[2,2] y) { y = Div(x, c) }", {"c": divisor})
    made = after_pass("replace_div_with_mul", model)
    assert op_types(made) == ["Mul"]
    assert_same_results(model, made, rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("kind", "divisor"),
    [("float", np.array([1, 0], np.float32)), ("float", np.float32(1e-39)), ("float", np.float32(INF)), ("int32", np.int32(2))],
)
def test_division_without_a_finite_reciprocal_is_kept(kind: str, divisor: np.ndarray) -> None:
    assert is_kept("replace_div_with_mul", parse(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Div(x, c) }}", {"c": divisor}))


@pytest.mark.parametrize(("reader", "kind"), [("Floor(q)", "float"), ("Cast<to = 6>(q)", "int32"), ("Less(q, x)", "bool")])
def test_rounded_or_compared_quotients_are_kept_unless_the_product_is_exact(reader: str, kind: str) -> None:
    text = f"g (float[2] x) => ({kind}[2] y) {{ q = Div(x, c) y = {reader} }}"
    assert is_kept("replace_div_with_mul", parse(text, {"c": np.float32(41)}))
    made = after_pass("replace_div_with_mul", parse(text, {"c": np.array([-4, 0.5], np.float32)}))
    assert op_types(made)[0] == "Mul"


def test_division_of_a_constant_is_kept() -> None:
    assert is_kept("replace_div_with_mul", parse("g (float[2] x) => (float[2] y) { y = Div(c, x) }", {"c": np.float32(2)}))


def test_fast_error_function_keeps_its_bound_and_its_sign() -> None:
    from stoker.compiler.passes.replacement.elementwise import ERROR_BOUND

    x = np.array([*np.linspace(-7, 7, 20001), -1e30, 1e30, -INF, INF], np.float32)
    model = parse(f"g (float[{x.size}] x) => (float[{x.size}] y) {{ y = Erf(x) }}")
    made = after_pass("replace_erf_with_erfv2", model)
    assert op_types(made) == ["Mul", "Mul", "Add", "Mul", "Tanh"]
    exact, fast = (run_onnx(each, {"x": x})["y"] for each in (model, made))
    assert 2e-4 < np.abs(fast - exact).max() < ERROR_BOUND
    np.testing.assert_allclose(fast[:20001], exact[:20001], rtol=2e-3)
    assert is_kept("replace_erf_with_erfv2", parse("g (double[2] x) => (double[2] y) { y = Erf(x) }"))


@pytest.mark.parametrize(
    ("attributes", "shape", "weights", "bias", "ops"),
    [
        ("", "3,4", (4, 5), (5,), ["MatMul", "Add"]),
        ("<transB = 1, alpha = 0.5, beta = 2.0>", "3,4", (5, 4), (1, 5), ["MatMul", "Add"]),
        ("<transA = 1>", "4,3", (4, 5), None, ["Transpose", "MatMul"]),
        ("<beta = 0.0>", "3,4", (4, 5), (5,), ["MatMul"]),
    ],
)
def test_gemm_becomes_a_product_and_a_sum(attributes: str, shape: str, weights: tuple, bias: tuple | None, ops: list[str]) -> None:
    constants = {"w": RANDOM.standard_normal(weights).astype(np.float32)}
    if bias is not None:
        constants["b"] = RANDOM.standard_normal(bias).astype(np.float32)
    model = parse(f"g (float[{shape}] x) => (float[3,5] y) {{ y = Gemm{attributes}(x, {', '.join(constants)}) }}", constants)
    made = after_pass("replace_gemm_with_matmul", model)
    assert op_types(made) == ops
    assert_same_results(model, made, rtol=1e-5, atol=1e-5)


def test_gemm_of_computed_operands_is_scaled_by_nodes() -> None:
    text = "g (float[3,4] x, float[5,4] w, float[5] b) => (float[3,5] y) { y = Gemm<alpha = 0.5, beta = 3.0, transB = 1>(x, w, b) }"
    model = parse(text)
    made = after_pass("replace_gemm_with_matmul", model)
    assert op_types(made) == ["Transpose", "MatMul", "Mul", "Mul", "Add"]
    assert_same_results(model, made)


def test_gemm_in_eight_bits_is_kept() -> None:
    model = parse("g (float[3,4] x) => (float[3,5] y) { y = Gemm(x, w) }", {"w": RANDOM.standard_normal((4, 5)).astype(np.float32)})
    eight = PassManager(["float_to_half", "float_to_fp8"]).run(model)
    assert "Gemm" in op_types(get_pass("replace_gemm_with_matmul")(eight))


@pytest.mark.parametrize("word", ["Greater", "Less"])
@pytest.mark.parametrize(("kind", "ops"), [("float", ["{}", "Equal", "Or"]), ("int32", ["{other}", "Not"])])
def test_greater_or_equal_is_decomposed(word: str, kind: str, ops: list[str]) -> None:
    model = parse(f"g ({kind}[3,1] a, {kind}[4] b) => (bool[3,4] y) {{ y = {word}OrEqual(a, b) }}")
    made = after_pass(f"replace_{word.lower()}_or_equal", model)
    assert op_types(made) == [each.format(word, other={"Greater": "Less", "Less": "Greater"}[word]) for each in ops]
    dtype = np.dtype({"float": "f4"}.get(kind, kind))
    values = np.array([1, NAN, INF], np.float32) if kind == "float" else np.array([1, 2, 3])
    feeds = {"a": values.astype(dtype).reshape(3, 1), "b": np.array([1, 2, 3, 0]).astype(dtype)}
    assert_same_results(model, made, feeds, rtol=0, atol=0)


GROUP_NORMS = {
    "PyTorch's": """r = Reshape(x, one_channel) n = InstanceNormalization<epsilon = 0.001>(r, s, b) o = Reshape(n, shape)
        f = Mul(o, gamma) y = Add(f, beta)""",
    "bare": "r = Reshape(x, one_channel) n = InstanceNormalization<epsilon = 0.001>(r, s, b) y = Reshape(n, shape)",
    "ONNX's": """r = Reshape(x, one_channel) m = ReduceMean(r, last) q = Mul(r, r) mq = ReduceMean(q, last) qm = Mul(m, m) v = Sub(mq, qm)
        e = Add(v, eps) d = Sqrt(e) c = Sub(r, m) n = Div(c, d) o = Reshape(n, shape) p = Reshape(o, flat) f = Mul(gamma_flat, p)
        a = Add(f, beta_flat) y = Reshape(a, shape)""",
}
GROUP_CONSTANTS = {
    "one_channel": np.array([0, 1, -1]),
    "shape": np.array([2, 4, 3, 3]),
    "flat": np.array([2, 4, 9]),
    "last": np.array([2]),
    "s": np.array([1.5], np.float16),
    "b": np.array([-0.25], np.float16),
    "eps": np.array([0.001], np.float16),
    "gamma": np.array([1, -2, 0.5, 3], np.float16).reshape(4, 1, 1),
    "beta": np.array([0, 1, 2, -1], np.float16).reshape(4, 1, 1),
    "gamma_flat": np.array([1, -2, 0.5, 3], np.float16).reshape(1, 4, 1),
    "beta_flat": np.array([0, 1, 2, -1], np.float16).reshape(1, 4, 1),
}


def group_norm(body: str, kind: str = "float16", outputs: str = "") -> onnx.ModelProto:
    used = {name: array for name, array in GROUP_CONSTANTS.items() if name in re.findall(r"\w+", body)}
    if kind == "float":
        used = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in used.items()}
    return parse(f"g ({kind}[2,4,3,3] x) => ({kind}[2,4,3,3] y{outputs}) {{ {body} }}", used)


@pytest.mark.parametrize("body", GROUP_NORMS.values(), ids=GROUP_NORMS)
def test_group_norm_of_one_group_in_half_precision_becomes_one_node(body: str) -> None:
    model = group_norm(body)
    made = after_pass("replace_groupnorm_with_fast_norm", model)
    assert op_types(made) == ["LayerNormalization"]
    assert len(made.graph.initializer) == 2
    assert_same_results(model, made, rtol=1e-2, atol=1e-2)


def test_group_norm_node_becomes_a_layer_norm() -> None:
    model = group_norm("y = GroupNormalization<num_groups = 1, epsilon = 0.001>(x, s, b)")
    made = after_pass("replace_groupnorm_with_fast_norm", model)
    assert op_types(made) == ["LayerNormalization"]
    assert_same_results(model, made, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("body", GROUP_NORMS.values(), ids=GROUP_NORMS)
def test_group_norms_in_single_precision_or_with_other_readers_are_kept(body: str) -> None:
    assert is_kept("replace_groupnorm_with_fast_norm", group_norm(body, "float"))
    assert is_kept("replace_groupnorm_with_fast_norm", group_norm(body, outputs=", float16[2,1,36] n"))


def test_group_norms_of_several_groups_are_kept() -> None:
    assert is_kept("replace_groupnorm_with_fast_norm", group_norm(GROUP_NORMS["bare"].replace("one_channel", "flat")))
    two = "y = GroupNormalization<num_groups = 2>(x, two, two)"
    model = parse(f"g (float16[2,4,3,3] x) => (float16[2,4,3,3] y) {{ {two} }}", {"two": np.array([1, 2], np.float16)})
    assert is_kept("replace_groupnorm_with_fast_norm", model)


@pytest.mark.parametrize(
    ("call", "result"), [("ReduceMean<keepdims = 0>(x, a)", "2,4"), ("ReduceMean(x, a)", "2,1,4"), ("ReduceMean<keepdims = 0>(x)", "")]
)
def test_mean_in_half_precision_becomes_a_sum_and_a_factor(call: str, result: str) -> None:
    constants = {"a": np.array([-2])} if "a)" in call else {}
    model = parse(f"g (float16[2,3,4] x) => (float16[{result}] y) {{ y = {call} }}", constants)
    made = after_pass("replace_half_reducemean", model)
    assert op_types(made) == ["ReduceSum", "Mul"]
    assert_same_results(model, made, rtol=3e-3, atol=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3] x) => (float[] y) { y = ReduceMean<keepdims = 0>(x) }",
        "g (float16[N,3] x) => (float16[] y) { y = ReduceMean<keepdims = 0>(x) }",
        "g (float16[2,20000] x) => (float16[] y) { y = ReduceMean<keepdims = 0>(x) }",
        "g (float16[2,3] x) => (float16[2,3] y) { y = ReduceMean<noop_with_empty_axes = 1>(x) }",
    ],
    ids=["float", "unknown size", "too many", "nothing reduced"],
)
def test_other_means_are_kept(text: str) -> None:
    assert is_kept("replace_half_reducemean", parse(text))


def test_hard_swish_becomes_a_product_with_a_gate() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = HardSwish(x) }")
    made = after_pass("replace_hardswish", model)
    assert op_types(made) == ["HardSigmoid", "Mul"]
    assert_same_results(model, made, {"x": np.array([-4, -1, 0.5, 7], np.float32)})


@pytest.mark.parametrize(
    ("attributes", "ops"),
    [
        ("detect_positive = 1", ["Abs", "Greater"]),
        ("detect_negative = 0", ["Greater"]),
        ("detect_positive = 0", ["Less"]),
    ],
)
def test_isinf_becomes_a_comparison_with_the_largest_number(attributes: str, ops: list[str]) -> None:
    model = parse(f"g (float[14] x) => (bool[14] y) {{ y = IsInf<{attributes}>(x) }}")
    made = after_pass("replace_isinf", model)
    assert op_types(made) == ops
    assert_same_results(model, made, {"x": EDGES}, rtol=0, atol=0)


def test_isinf_in_half_precision_is_replaced_too() -> None:
    model = parse("g (float[3] x) => (bool[3] y) { y = IsInf(x) }")
    half = PassManager(["replace_isinf", "float_to_half"]).run(model)
    assert run_onnx(half, {"x": np.array([-INF, 60000, NAN], np.float16)})["y"].tolist() == [True, False, False]


@pytest.mark.parametrize("place", [0, 5, 23])
@pytest.mark.parametrize(("kind", "sizes"), [("bool", (24,)), ("float", (4, 6)), ("int32", (2, 3, 4))])
def test_nonzero_of_one_element_becomes_an_argmax(kind: str, sizes: tuple[int, ...], place: int) -> None:
    shape = ",".join(map(str, sizes))
    model = parse(f"g ({kind}[{shape}] x) => (int64[{len(sizes)},1] y) {{ y = NonZero(x) }}")
    made = after_pass("replace_nonzero", model)
    assert "ArgMax" in op_types(made)
    assert "NonZero" not in op_types(made)
    x = np.zeros(24, {"float": "f4"}.get(kind, kind))
    x[place] = True if kind == "bool" else -3
    assert_same_results(model, made, {"x": x.reshape(sizes)}, rtol=0, atol=0)


def test_nonzero_of_unknown_count_is_kept() -> None:
    assert is_kept("replace_nonzero", parse("g (float[4] x) => (int64[1,N] y) { y = NonZero(x) }"))


@pytest.mark.parametrize(
    ("exponent", "ops"),
    [
        (1, ["Identity"]),
        (2, ["Mul"]),
        (3, ["Mul", "Mul"]),
        (4, ["Mul", "Mul"]),
        (0.5, ["Sqrt"]),
        (-0.5, ["Sqrt", "Reciprocal"]),
        (-1, ["Reciprocal"]),
    ],
)
def test_common_powers_become_products_roots_and_reciprocals(exponent: float, ops: list[str]) -> None:
    model = parse("g (float[5] x) => (float[5] y) { y = Pow(x, e) }", {"e": np.float32(exponent)})
    made = after_pass("replace_pow", model)
    assert op_types(made) == ops
    assert_same_results(model, made, {"x": np.array([0.25, 1, 3, 1e3, 7e4], np.float32)}, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("kind", "exponent"), [("float", np.float32(2.5)), ("float", np.array([2, 3], np.float32)), ("int32", np.int32(-1))]
)
def test_other_powers_are_kept(kind: str, exponent: np.ndarray) -> None:
    assert is_kept("replace_pow", parse(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Pow(x, e) }}", {"e": exponent}))


def test_integer_powers_of_integers_become_products() -> None:
    model = parse("g (int32[3] x) => (int32[3] y) { y = Pow(x, e) }", {"e": np.float32(3)})
    made = after_pass("replace_pow", model)
    assert_same_results(model, made, {"x": np.array([-5, 0, 1000], np.int32)}, rtol=0, atol=0)


def test_rounding_is_half_to_even() -> None:
    x = np.concatenate([EDGES, np.arange(-8, 8, 0.25).astype(np.float32), np.array([2**23 - 0.5, 2**24 + 2, -(2**22) - 0.5], np.float32)])
    model = parse(f"g (float[{x.size}] x) => (float[{x.size}] y) {{ y = Round(x) }}")
    made = after_pass("replace_round", model)
    assert "Round" not in op_types(made)
    np.testing.assert_array_equal(run_onnx(made, {"x": x})["y"], run_onnx(model, {"x": x})["y"])


@pytest.mark.parametrize(("kind", "axis"), [("float", "<axis = -1>"), ("float16", "<axis = 2>")])
def test_softmax_over_an_odd_size_is_padded_by_one_element(kind: str, axis: str) -> None:
    model = parse(f"g ({kind}[2,3,5] x) => ({kind}[2,3,5] y) {{ y = Softmax{axis}(x) }}")
    made = after_pass("replace_softmax", model)
    assert op_types(made) == ["Pad", "Softmax", "Slice"]
    feeds = random_feeds(model)
    feeds["x"][0, 0] = np.finfo(feeds["x"].dtype).min
    assert_same_results(model, made, feeds, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "axis"), [("3,4", -1), ("3,1", -1), ("3,5", 0), ("3,N", -1)])
def test_other_softmaxes_are_kept(shape: str, axis: int) -> None:
    assert is_kept("replace_softmax", parse(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Softmax<axis = {axis}>(x) }}"))
