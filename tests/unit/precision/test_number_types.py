"""Models with bfloat16 at their border, converted to types of numpy."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from stoker.compiler.check import compare_models
from stoker.compiler.precision.drift import measure_drift
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types
from tests.fakes.graphs import assert_valid, parse, run_onnx


def test_model_without_bfloat16_is_returned_unchanged() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert with_numpy_types(model) is model


@pytest.mark.parametrize(
    "text",
    [
        "g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }",
        "g (bfloat16[2] x) => (bfloat16[2] y, float[2] z) { y = Identity(x) z = Cast <to = 1> (y) }",
        """g (bfloat16[2] x, bool[1] c) => (bfloat16[2] y) {
            y = If (c) <
                then_branch = a () => (bfloat16[2] p) { p = Identity(x) }, else_branch = b () => (bfloat16[2] q) { q = Identity(x) }
            >
        }""",
    ],
)
def test_every_value_is_equal_after_conversion(text: str) -> None:
    model = parse(text)
    made = with_numpy_types(model)
    assert_valid(made)
    assert [value.name for value in made.graph.output] == [value.name for value in model.graph.output]
    assert {value.type.tensor_type.elem_type for value in made.graph.output} == {onnx.TensorProto.FLOAT}
    x = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    feeds = numpy_feeds({"x": x, "c": np.array([True])})
    for found in run_onnx(made, {value.name: feeds[value.name] for value in made.graph.input}).values():
        assert found.tolist() == [1.5, -2.25]


def test_check_and_drift_run_bfloat16_models() -> None:
    model = parse("g (float[2,4] x) => (bfloat16[2,4] y) { y = Cast <to = 16> (x) }")
    assert [each.max_error for each in compare_models(model, model)] == [0]
    assert [each.max_abs for each in measure_drift(model, model).outputs] == [0]
