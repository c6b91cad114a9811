"""Operators that PopART lacks are replaced, and others are kept."""

import numpy as np
import pytest
from onnx import helper

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import (
    Constants,
    after_pass,
    as_ir,
    assert_same_results,
    initializers_of,
    is_kept,
    model_of,
    op_types,
    parse,
    random_feeds,
    run_onnx,
    tensor,
)

RANDOM = np.random.default_rng(11)


def test_parameters_of_a_batch_norm_get_the_type_of_its_input() -> None:
    parameters = {name: RANDOM.uniform(0.5, 2, 3).astype(np.float32) for name in "sbmv"}
    model = parse("g (float16[2,3,4] x) => (float16[2,3,4] y) { y = BatchNormalization(x, s, b, m, v) }", parameters)
    made = after_pass("batchnorm_workaround", model)
    assert {array.dtype for array in initializers_of(made).values()} == {np.dtype(np.float16)}
    assert len(made.graph.initializer) == 4
    x = RANDOM.standard_normal((2, 3, 4)).astype(np.float16)
    shape = (1, 3, 1)
    s, b, m, v = (parameters[name].reshape(shape) for name in "sbmv")
    np.testing.assert_allclose(run_onnx(made, {"x": x})["y"], (x - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-2, atol=1e-2)


def test_computed_parameters_of_a_batch_norm_are_cast_and_unread_outputs_removed() -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "mean", "variance"])
    parameters = {name: RANDOM.uniform(0.5, 2, 3).astype(np.float32) for name in "bmv"}
    model = model_of([node], [tensor("x", [2, 3]), tensor("s", [3], np.float64)], [tensor("y", [2, 3])], parameters)
    made = get_pass("batchnorm_workaround")(as_ir(model))
    assert op_types(made) == ["Cast", "BatchNormalization"]
    assert len(list(made.graph)[-1].outputs) == 1


def test_batch_norm_of_one_type_or_in_training_is_kept() -> None:
    parameters = {name: np.ones(3, np.float32) for name in "sbmv"}
    assert is_kept(
        "batchnorm_workaround", parse("g (float[2,3] x) => (float[2,3] y) { y = BatchNormalization(x, s, b, m, v) }", parameters)
    )
    training = "g (float16[2,3] x) => (float16[2,3] y) { y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }"
    assert not get_pass("batchnorm_workaround").apply(as_ir(parse(training, parameters)))


@pytest.mark.parametrize("attributes", ["", "<exclusive = 1>", "<reverse = 1>", "<exclusive = 1, reverse = 1>"])
@pytest.mark.parametrize(("axis", "ops"), [(-1, ["MatMul"]), (0, ["Transpose", "MatMul", "Transpose"])])
def test_cumsum_becomes_a_product_with_a_triangle(attributes: str, axis: int, ops: list[str]) -> None:
    model = parse(f"g (float[3,4,5] x) => (float[3,4,5] y) {{ y = CumSum{attributes}(x, a) }}", {"a": np.int64(axis)})
    made = after_pass("cumsum_workaround", model)
    assert op_types(made) == ops
    assert_same_results(model, made)


@pytest.mark.parametrize(("kind", "shape"), [("int32", "4"), ("float", "600"), ("float", "N")])
def test_cumsum_of_integers_or_long_dimensions_is_kept(kind: str, shape: str) -> None:
    assert is_kept("cumsum_workaround", parse(f"g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = CumSum(x, a) }}", {"a": np.int64(0)}))


def test_cumsum_along_a_computed_axis_is_kept() -> None:
    assert is_kept("cumsum_workaround", parse("g (float[4] x, int64 a) => (float[4] y) { y = CumSum(x, a) }"))


@pytest.mark.parametrize(
    ("kind", "body", "casts"),
    [
        ("int32", "y = MatMul(x, x)", 2),
        ("int64", "y = Pow(x, power)", 1),
        ("int32", "y = ReduceMean<noop_with_empty_axes = 1>(x)", 1),
        ("int32", "y = ReduceL2(x, a)", 1),
        ("int32", "y = ReduceLogSum(x, a)", 1),
    ],
)
def test_float_operators_get_floats(kind: str, body: str, casts: int) -> None:
    shape = "3,1" if "a)" in body else "3,3"
    constants = {name: np.array(value) for name, value in {"a": [1], "power": 5}.items() if f"{name})" in body}
    model = parse(f"g ({kind}[3,3] x) => ({kind}[{shape}] y) {{ {body} }}", constants)
    made = after_pass("float_ops_workaround", model)
    assert op_types(made).count("Cast") == casts + 1
    assert_same_results(model, made, {"x": np.arange(1, 10).reshape(3, 3).astype(kind)}, rtol=0, atol=0)


def test_means_of_integers_are_truncated() -> None:
    model = parse("g (int32[1,2] x) => (int32[1,1] y) { y = ReduceMean(x, a) }", {"a": np.array([1])})
    made = after_pass("float_ops_workaround", model)
    assert_same_results(model, made, {"x": np.array([[-4, -3]], np.int32)}, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "body"), [("float", "y = MatMul(x, x)"), ("int32", "y = Add(x, x)")])
def test_float_operators_on_floats_and_others_on_integers_are_kept(kind: str, body: str) -> None:
    assert is_kept("float_ops_workaround", parse(f"g ({kind}[3,3] x) => ({kind}[3,3] y) {{ {body} }}"))


@pytest.mark.parametrize(
    ("body", "indices", "counted", "result"),
    [
        ("y = Gather<axis = 1>(x, i)", np.array([0, -1]), [0, 3], "3,2"),
        ("y = Gather(x, i)", np.array(-3), 0, "4"),
        ("y = GatherElements<axis = -1>(x, i)", np.array([[-1, 1]]), [[3, 1]], "1,2"),
        ("y = GatherND(x, i)", np.array([[-1, -1], [0, -4]]), [[2, 3], [0, 0]], "2"),
        ("y = GatherND<batch_dims = 1>(x, i)", np.array([[-1], [0], [-2]]), [[3], [0], [2]], "3"),
        ("y = ScatterElements<axis = 0>(x, i, u)", np.array([[-1]]), [[2]], "3,4"),
        ("y = ScatterND(x, i, v)", np.array([[-1, 0]]), [[2, 0]], "3,4"),
    ],
)
def test_negative_indices_become_positive(body: str, indices: np.ndarray, counted: object, result: str) -> None:
    constants = {"i": indices} | {name: np.full((1,) * (2 if name == "u" else 1), 7, np.float32) for name in "uv" if f", {name})" in body}
    model = parse(f"g (float[3,4] x) => (float[{result}] y) {{ {body} }}", constants)
    made = after_pass("indices_workaround", model)
    assert [array.tolist() for array in initializers_of(made).values() if array.dtype == np.int64] == [counted]
    assert_same_results(model, made, rtol=0, atol=0)


@pytest.mark.parametrize(("size", "indices"), [("3", [0, 2]), ("N", [-1])])
def test_positive_indices_or_those_in_an_unknown_size_are_kept(size: str, indices: list[int]) -> None:
    model = parse(f"g (float[{size}] x) => (float[{len(indices)}] y) {{ y = Gather(x, i) }}", {"i": np.array(indices)})
    assert not get_pass("indices_workaround").apply(as_ir(model))


def test_onehot_gets_integers_and_a_positive_axis() -> None:
    constants = {"d": np.float32(4), "v": np.array([0, 5], np.float32)}
    model = parse("g (float[3] x) => (float[3,4] y) { y = OneHot(x, d, v) }", constants)
    made = after_pass("onehot_workaround", model)
    assert op_types(made) == ["Cast", "OneHot"]
    assert made.graph.node[1].attribute[0].i == 1
    assert_same_results(model, made, {"x": np.array([0, 3, -1], np.float32)}, rtol=0, atol=0)


def test_onehot_of_integers_along_a_positive_axis_is_kept() -> None:
    constants = {"d": np.int64(4), "v": np.array([0, 5], np.float32)}
    assert is_kept("onehot_workaround", parse("g (int64[3] x) => (float[4,3] y) { y = OneHot<axis = 0>(x, d, v) }", constants))


@pytest.mark.parametrize("kind", ["float", "int64", "int32"])
def test_smallest_become_the_largest_of_the_negated(kind: str) -> None:
    text = f"g ({kind}[2,6] x) => ({kind}[2,3] y, int64[2,3] i) {{ y, i = TopK<largest = 0>(x, k) }}"
    model = parse(text, {"k": np.array([3])})
    made = after_pass("topk_workaround", model)
    assert op_types(made) == ["Neg", "TopK", "Neg"]
    x = np.array([[3, 1, 2, 1, 0, 3], [0, 0, 0, 0, 0, 0]]).astype({"float": "f4"}.get(kind, kind))
    assert_same_results(model, made, {"x": x}, rtol=0, atol=0)


def test_indices_of_the_smallest_alone_need_no_second_negation() -> None:
    model = parse("g (float[6] x) => (int64[3] i) { y, i = TopK<largest = 0>(x, k) }", {"k": np.array([3])})
    made = after_pass("topk_workaround", model)
    assert op_types(made) == ["Neg", "TopK"]
    assert_same_results(model, made, rtol=0, atol=0)


def test_topk_along_a_positive_axis_is_kept() -> None:
    assert is_kept("topk_workaround", parse("g (float[6] x) => (float[3] y) { y, i = TopK<axis = 0>(x, k) }", {"k": np.array([3])}))


@pytest.mark.parametrize(
    ("inputs", "ops"),
    [("x, e, x", ["Concat"]), ("e, x", ["Identity"]), ("e, e2, x, z", ["Concat"])],
)
def test_empty_concat_inputs_are_removed(inputs: str, ops: list[str]) -> None:
    constants: Constants = {name: np.zeros((2, 0), np.float32) for name in ("e", "e2") if name in inputs.split(", ")}
    width = 3 * sum(name in "xz" for name in inputs.split(", "))
    given = "float[2,3] x" + (", float[2,3] z" if "z" in inputs else "")
    model = parse(f"g ({given}) => (float[2,{width}] y) {{ y = Concat<axis = -1>({inputs}) }}", constants)
    made = after_pass("remove_empty_concat_inputs", model)
    assert op_types(made) == ops
    assert not made.graph.initializer
    assert_same_results(model, made, random_feeds(model), rtol=0, atol=0)


def test_concat_without_or_with_only_empty_inputs_is_kept() -> None:
    assert is_kept("remove_empty_concat_inputs", parse("g (float[2,3] x) => (float[4,3] y) { y = Concat<axis = 0>(x, x) }"))
    empty = {"e": np.zeros((2, 0), np.float32)}
    assert is_kept("remove_empty_concat_inputs", parse("g (float[2] x) => (float[2,0] y) { y = Concat<axis = 1>(e, e) }", empty))
