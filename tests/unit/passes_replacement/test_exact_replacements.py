"""Exact replacements are exact for any numbers, infinities, NaN and ties included."""

import functools

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compiler.passes import PassManager
from tests.fakes.graphs import as_proto, parse

SIZE = 6
#: Halves, neighbours of halves, large numbers, infinities and NaN more often than numbers at random.
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388607.5, 3.4028235e38, -3.4028235e38, 1e-45, np.inf, -np.inf, np.nan]
NUMBERS = st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(width=32)), min_size=SIZE, max_size=SIZE)
INTEGERS = st.lists(st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-2, 2), min_size=SIZE, max_size=SIZE)

FLOATS = {
    "replace_round": "(float[6] y) { y = Round(x) }",
    "replace_isinf": "(bool[6] y) { y = IsInf<detect_positive = 1>(x) }",
    "replace_greater_or_equal": "(bool[6] y) { a = Neg(x) y = GreaterOrEqual(a, x) }",
    "replace_less_or_equal": "(bool[6] y) { a = Abs(x) y = LessOrEqual(a, x) }",
    "replace_consecutive_cast_with_notzero": "(float[6] y) { b = Cast<to = 9>(x) y = Cast<to = 1>(b) }",
}
WHOLE = {
    "replace_greater_or_equal": "(bool[6] y) { a = Neg(x) y = GreaterOrEqual(a, x) }",
    "replace_less_or_equal": "(bool[6] y) { a = Abs(x) y = LessOrEqual(a, x) }",
    "replace_consecutive_cast_with_notzero": "(int32[6] y) { b = Cast<to = 9>(x) y = Cast<to = 6>(b) }",
    "topk_workaround": "(int32[3] y, int64[3] i) { k = Constant<value_ints = [3]>() y, i = TopK<largest = 0>(x, k) }",
}


@functools.cache
def sessions(name: str, kind: str, text: str) -> tuple[onnxruntime.InferenceSession, ...]:
    """The model before and after pass `name`."""
    model = parse(f"g ({kind}[{SIZE}] x) => {text}")
    made = PassManager(["shape_inference", name]).run(model)
    assert made != model
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return tuple(
        onnxruntime.InferenceSession(as_proto(each).SerializeToString(), options, providers=["CPUExecutionProvider"])
        for each in (model, made)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOATS)
@given(numbers=NUMBERS)
def test_replacements_are_exact_for_any_floats(name: str, numbers: list[float]) -> None:
    before, after = (each.run(None, {"x": np.array(numbers, np.float32)}) for each in sessions(name, "float", FLOATS[name]))
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
@given(numbers=INTEGERS)
def test_replacements_are_exact_for_any_integers(name: str, numbers: list[int]) -> None:
    before, after = (each.run(None, {"x": np.array(numbers, np.int32)}) for each in sessions(name, "int32", WHOLE[name]))
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_array_equal(got, wanted)
