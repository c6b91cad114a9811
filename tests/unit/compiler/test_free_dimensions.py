"""Sizes for models whose dimensions may stay open."""

import numpy as np
import onnx
import pytest

from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.free_dimensions import closed, requested_batch_size
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import ShapeError
from tests.fakes.graphs import parse

TEXT = "g (float[n,s,4] x, float[n,s,4] z) => (float[n,s,4] y) { y = Add(x, z) }"


def dims(model: onnx.ModelProto) -> list[list[int | str]]:
    return [
        [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in (*model.graph.input, *model.graph.output)
    ]


@pytest.mark.parametrize(
    ("options", "shape", "batch"),
    [
        ({}, ["n", "s", 4], None),
        ({"batch_size": 8, "batch_axis": 0}, ["n", "s", 4], 8),
        ({"batch_size": 8, "batch_axis": 1}, ["n", 8, 4], None),
        ({"input_shape": {"x": (2, 3, 4), "z": (2, 3, 4)}}, ["n", 3, 4], 2),
        ({"input_shape": {"x": (2, 3, 4)}}, ["n", 3, 4], 2),
    ],
)
def test_batch_stays_open_and_other_sizes_are_fixed(options: dict, shape: list[int | str], batch: int | None) -> None:
    made = ConversionOptions.of(options)
    converter = Converter.of(made, keeps_free_dimensions=True)
    assert dims(converter.convert_internal(parse(TEXT))) == [shape, shape, shape]
    assert requested_batch_size(made) == batch


def test_dimension_that_is_not_the_batch_of_all_inputs_is_fixed_on_request() -> None:
    text = "g (float[n,4] x, float[4,4] z) => (float[n,4] y) { y = MatMul(x, z) }"
    converter = Converter.of(ConversionOptions.of({"input_shape": {"x": (3, 4)}}), keeps_free_dimensions=True)
    assert dims(converter.convert_internal(parse(text))) == [[3, 4], [4, 4], [3, 4]]


def test_open_dimensions_are_closed_for_data() -> None:
    model = parse(TEXT)
    assert dims(closed(model))[0] == [2, 16, 4]
    arrays = {"x": np.zeros((5, 7, 4)), "z": np.zeros((3, 5, 7, 4))}
    assert dims(closed(model, arrays))[:2] == [[5, 7, 4], [5, 7, 4]]
    with pytest.raises(ShapeError, match=r"input 'x' has shape \[4\]; expected 3 dimensions"):
        closed(model, {"x": np.zeros(4)})


def test_static_model_is_returned_unchanged() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert closed(model) is model
