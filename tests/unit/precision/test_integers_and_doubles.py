"""64-bit numbers become 32-bit ones: operators that need 64 bits keep them, values out of range are clipped or refused."""

import logging

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import CompileError
from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_valid, initializers_of, op_types, parse, random_feeds, run_onnx

INT64_MAX = np.iinfo(np.int64).max


def narrowed(array: np.ndarray) -> np.ndarray:
    return array.astype({"int64": np.int32, "float64": np.float32}.get(str(array.dtype), array.dtype))


def assert_same_but_narrower(before: onnx.ModelProto, after: onnx.ModelProto, rtol: float = 0, atol: float = 0) -> None:
    assert_valid(after)
    feeds = random_feeds(before)
    expected = run_onnx(before, feeds)
    actual = run_onnx(after, {name: narrowed(array) for name, array in feeds.items()})
    for name, wanted in expected.items():
        assert actual[name].dtype == narrowed(wanted).dtype
        np.testing.assert_allclose(actual[name], wanted, rtol=rtol, atol=atol)


def test_inputs_outputs_and_indices_become_int32() -> None:
    before = parse("g (int64[2,3] ids) => (float[2,3,4] y, int64[2,3] next) { y = Gather(t, ids) next = Add(ids, one) }",
                   {"t": np.eye(4, dtype=np.float32), "one": np.int64(1)})  # fmt: skip
    after = get_pass("int64_to_int32")(before)
    assert "Cast" not in op_types(after)
    assert initializers_of(after)["one"].dtype == np.int32
    assert_same_but_narrower(before, after)


def test_shapes_axes_and_counts_stay_int64() -> None:
    text = """g (float[2,6] x) => (float[12] flat, int64[2,2] where) {
        flat = Reshape(x, shape)
        values, where = TopK(x, k)
    }"""
    before = parse(text, {"shape": np.array([12], np.int64), "k": np.array([2], np.int64)})
    after = get_pass("int64_to_int32")(before)
    assert op_types(after) == ["Reshape", "TopK", "Cast"]
    assert {array.dtype for array in initializers_of(after).values()} == {np.dtype(np.int64)}
    assert_same_but_narrower(before, after)


def test_computed_shape_is_cast_back_for_reshape() -> None:
    text = """g (float[2,6] x) => (float[3,4] y) {
        shape = Shape(x)
        scaled = Mul(shape, by)
        moved = Add(scaled, plus)
        y = Reshape(x, moved)
    }"""
    before = parse(text, {"by": np.array([1, 1], np.int64), "plus": np.array([1, -2], np.int64)})
    after = get_pass("int64_to_int32")(before)
    assert op_types(after) == ["Shape", "Cast", "Mul", "Add", "Cast", "Reshape"]
    assert_same_but_narrower(before, after)


def test_end_of_a_slice_is_clipped_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    before = parse(
        "g (float[8] x) => (float[6] y) { y = Slice(x, starts, ends) }",
        {"starts": np.array([2], np.int64), "ends": np.array([INT64_MAX], np.int64)},
    )
    with caplog.at_level(logging.WARNING):
        after = get_pass("int64_to_int32")(before)
    assert initializers_of(after)["ends"].tolist() == [2**31 - 1]
    assert not caplog.records
    assert_same_but_narrower(before, after)


def test_bound_of_a_comparison_is_clipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    before = parse("g (int64[3] x) => (int64[3] y) { y = Min(x, most) }", {"most": np.array([2**40], np.int64)})
    with caplog.at_level(logging.WARNING):
        after = get_pass("int64_to_int32")(before)
    assert [record.message.split(";")[1] for record in caplog.records] == [" it is clipped to INT32"]
    assert_same_but_narrower(before, after)


def test_constant_whose_clipping_would_change_the_result_is_refused() -> None:
    before = parse("g (int64[3] x) => (int64[3] y) { y = Add(x, much) }", {"much": np.array([2**40], np.int64)})
    before.graph.node[0].name = "adder"
    with pytest.raises(CompileError, match=r"constant 'much', read by node 'adder' \(Add\), holds 1099511627776, which does not fit INT32"):
        get_pass("int64_to_int32")(before)


def test_operator_without_an_int32_kernel_keeps_int64() -> None:
    text = "g (int64[3] x) => (int64[3,4] y) { h = OneHot(x, depth, off_on) y = Add(h, h) }"
    before = parse(text, {"depth": np.int64(4), "off_on": np.array([0, 5], np.int64)})
    after = get_pass("int64_to_int32")(before)
    assert op_types(after) == ["Cast", "OneHot", "Cast", "Add"]
    assert_same_but_narrower(before, after)


def test_casts_and_ranges_are_converted() -> None:
    text = """g (float[3] x) => (int64[3] y) {
        i = Cast<to=7>(x)
        r = Range(zero, three, one)
        y = Add(i, r)
    }"""
    before = parse(text, {"zero": np.int64(0), "three": np.int64(3), "one": np.int64(1)})
    after = get_pass("int64_to_int32")(before)
    assert op_types(after) == ["Cast", "Range", "Add"]
    assert_same_but_narrower(before, after)


def test_int64_inputs_and_outputs_can_be_kept() -> None:
    before = parse("g (int64[3] x) => (int64[3] y) { y = Add(x, x) }")
    after = get_pass("int64_to_int32", keep_io_types=True)(before)
    assert op_types(after) == ["Cast", "Add", "Cast"]
    feeds = random_feeds(before)
    np.testing.assert_array_equal(run_onnx(after, feeds)["y"], run_onnx(before, feeds)["y"])


def test_doubles_become_floats() -> None:
    text = "g (double[2,3] x) => (double[2,2] y, float[2,2] z) { m = MatMul(x, w) y = Relu(m) z = Cast<to=1>(y) }"
    before = parse(text, {"w": np.arange(6, dtype=np.float64).reshape(3, 2) / 7})
    after = get_pass("double_to_float")(before)
    assert initializers_of(after)["w"].dtype == np.float32
    assert_same_but_narrower(before, after, rtol=1e-5, atol=1e-5)


def test_double_beyond_float_is_clipped_and_infinity_kept(caplog: pytest.LogCaptureFixture) -> None:
    before = parse("g (double[2] x) => (double[2] y) { y = Min(x, w) }", {"w": np.array([1e300, np.inf])})
    with caplog.at_level(logging.WARNING):
        after = get_pass("double_to_float")(before)
    assert initializers_of(after)["w"].tolist() == [np.finfo(np.float32).max, np.inf]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,4] x, int64[2] i) => (float[2,7] y, int64[2] j) { y = Pad(x, p, , a) j = Add(i, i) }",
        "g (float[2,4] x, int64[2] i) => (float[2,3] y, int64[2] j) { y = CenterCropPad<axes = [1]>(x, c) j = Add(i, i) }",
    ],
)
def test_inputs_that_onnx_reads_as_int64_only_are_kept(text: str) -> None:
    weights = {"p": np.array([1, 2], np.int64), "a": np.array([-1], np.int64), "c": np.array([3], np.int64)}
    before = parse(text, {name: array for name, array in weights.items() if f", {name}" in text})
    after = get_pass("int64_to_int32")(before)
    assert {array.dtype for array in initializers_of(after).values()} == {np.dtype(np.int64)}
    assert_same_but_narrower(before, after)
