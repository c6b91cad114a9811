"""Models with other values than tensors are converted, and not compared."""

import logging

import pytest

from stoker.compiler.check import compare_models
from stoker.compiler.convert.converter import Converter
from stoker.compiler.errors import NotComparableError
from tests.fakes.graphs import parse

SPLIT = "g (float[4,3] x) => (seq(float[a,b]) y, float[4,3] z) { y = SplitToSequence<axis = 0>(x) z = Relu(x) }"


def test_output_that_is_a_sequence_is_not_compared() -> None:
    model = parse(SPLIT)
    errors = {each.name: each for each in compare_models(model, model)}
    assert errors["y"].not_comparable == "no tensor"
    assert errors["z"].max_error == 0


def test_input_that_is_a_sequence_is_not_compared() -> None:
    model = parse("g (seq(float[a,b]) x) => (int64 y) { y = SequenceLength(x) }")
    with pytest.raises(NotComparableError, match="x: only tensors are generated"):
        compare_models(model, model)


def test_conversion_with_a_sequence_is_no_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    converter = Converter(skip_passes=["final_check"])
    assert [value.name for value in converter.convert_internal(parse(SPLIT)).graph.output] == ["y", "z"]
    assert "output 'y' is not comparable with the source's: no tensor" in caplog.text


def test_output_of_another_shape_than_declared_is_not_compared() -> None:
    # Declared for masks with one true element; the conversion may rely on it.
    source = parse("g (bool[2,3] hot) => (int64[2,1] place) { place = NonZero(hot) }")
    changed = parse("g (bool[2,3] hot) => (int64[2,1] place) { place = Constant<value = int64[2,1] {0, 0}>() }")
    (error,) = compare_models(source, changed)
    assert error.not_comparable.endswith("for random data, and declared as [2, 1]")
