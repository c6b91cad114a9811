"""Tensors made for a load match the model's metadata, or the refusal names the missing facts."""

import numpy as np
import pytest

from stoker.cli.bench.filling import Filling
from stoker.cli.bench.tensors import TensorPlan, make_inputs, parse_shapes, rows_of
from stoker.cli.output import CommandFailed
from stoker_client import TypedArray


def model(*inputs):
    return {"name": "m", "inputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in inputs]}


def plan(*shapes, batch=None, filling=Filling.RANDOM, string_length=5):
    return TensorPlan(parse_shapes(shapes), filling, batch, string_length)


def typed(tensor: object) -> TypedArray:
    assert isinstance(tensor, TypedArray)
    return tensor


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT64", "FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("filling", list(Filling))
def test_numbers_of_every_type_are_reproducible(datatype, filling):
    first, second = (typed(make_inputs(model(("x", datatype, [-1, 3])), plan(batch=2, filling=filling), {})["x"]) for _ in range(2))
    assert first.datatype == datatype
    assert first.array.shape == (2, 3)
    assert np.array_equal(first.array, second.array)
    assert bool(np.any(first.array)) == (filling is Filling.RANDOM)


def test_strings_have_the_requested_length():
    made = make_inputs(model(("s", "BYTES", [2, 2])), plan(string_length=7), {})["s"]
    assert isinstance(made, np.ndarray)
    assert made.shape == (2, 2)
    assert {len(text) for text in made.ravel()} == {7}


def test_shapes_fill_open_dimensions_with_or_without_the_batch():
    facts = model(("a", "FP32", [-1, 3, -1, -1]), ("b", "INT32", [-1, -1]))
    made = make_inputs(facts, plan("a:3,8,9", "b:4,2", batch=4), {})
    assert [typed(made[name]).array.shape for name in ("a", "b")] == [(4, 3, 8, 9), (4, 2)]
    assert rows_of(made, facts) == 4


def test_given_tensors_are_sent_unchanged():
    given = np.ones((3, 2), np.float32)
    facts = model(("x", "FP32", [-1, 2]))
    made = make_inputs(facts, plan(), {"x": given})
    assert made["x"] is given
    assert rows_of(made, facts) == 3


def test_model_without_open_batch_counts_one_row():
    facts = model(("x", "FP32", [8, 2]))
    assert rows_of(make_inputs(facts, plan(), {}), facts) == 1


@pytest.mark.parametrize(
    ("shapes", "batch", "fragment"),
    [
        ((), None, "give their sizes by --shape x:SIZE"),
        (("x:3",), None, "1 sizes for an input of shape [-1, 3, -1]"),
        (("x:4,4",), None, "does not fit the model's"),
        (("y:1",), None, "no such input; it has x"),
        (("x:3,100000000",), 10_000, "no message holds it"),
    ],
)
def test_shapes_that_contradict_the_model_are_refused(shapes, batch, fragment):
    with pytest.raises(CommandFailed) as failed:
        make_inputs(model(("x", "FP32", [-1, 3, -1])), plan(*shapes, batch=batch), {})
    assert fragment in failed.value.message


@pytest.mark.parametrize("text", ["x", "x:", ":3", "x:a", "x:-1", "x:1,,2", "x:²"])
def test_malformed_shape_is_refused(text):
    with pytest.raises(CommandFailed, match="expected NAME:SIZE"):
        parse_shapes([text])


def test_batch_for_a_model_without_open_batch_is_refused():
    with pytest.raises(CommandFailed, match="no open batch dimension"):
        make_inputs(model(("x", "FP32", [8, 2])), plan(batch=2), {})
