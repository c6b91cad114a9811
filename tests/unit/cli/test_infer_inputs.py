"""Files, literals and pictures become the arrays of a model's metadata."""

import builtins
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from stoker.cli.inputs import PictureOptions, read_inputs
from stoker.cli.output import CommandFailed, ExitCode
from stoker.cli.pictures import Scale
from stoker_client import TypedArray, bf16_to_float32, float32_to_bf16


def read_one(value, datatype="FP32", shape=(-1, 4), **options):
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": datatype, "shape": list(shape)}]}
    return read_inputs([f"x={value}"], metadata, PictureOptions(**options))["x"]


@pytest.mark.parametrize("value", ["[1,2,3,4]", "[[1,2,3,4]]", "[[1,2],[3,4]]"])
def test_numbers_are_converted_to_the_models_type_and_rank(value):
    array = read_one(value, "INT64")
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2, 3, 4]] or value == "[[1,2],[3,4]]"


def test_flat_list_is_reshaped_if_only_one_size_is_open():
    assert read_one("[1,2,3,4,5,6,7,8]", shape=(-1, 2, 2)).shape == (2, 2, 2)


def test_input_of_another_size_is_sent_unchanged():
    assert read_one("[1,2,3]", shape=(-1, 2, 2)).shape == (3,)


@pytest.mark.parametrize(("value", "elements"), [("hello", ["hello"]), ('["a","b"]', ["a", "b"]), ('"q"', ["q"])])
def test_bytes_inputs_accept_plain_text(value, elements):
    assert read_one(value, "BYTES", (-1,)).tolist() == elements


def test_files_are_read_by_their_suffix(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.uint8))
    (tmp_path / "a.json").write_text(json.dumps([0, 1, 2, 3]))
    for file in ("a.npy", "a.json"):
        array = read_one(tmp_path / file)
        assert array.dtype == np.float32
        assert array.tolist() == [[0, 1, 2, 3]]


def test_bf16_inputs_are_rounded_and_typed():
    tensor = read_one("[1.0, -2.5, 0, 3]", "BF16")
    assert isinstance(tensor, TypedArray)
    assert bf16_to_float32(tensor.array).tolist() == [[1.0, -2.5, 0, 3]]


@given(hnp.arrays(np.float32, st.integers(0, 8), elements=st.floats(width=32)))
def test_rounding_to_bf16_agrees_with_ml_dtypes(values):
    ours = bf16_to_float32(float32_to_bf16(values))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(ours, values.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        ("abc", "FP32", "'abc' is neither JSON nor"),
        ("[1.5]", "INT32", "numbers with a fraction"),
        ("[300]", "UINT8", "does not hold UINT8 values"),
        ('["a"]', "FP32", "does not hold FP32 values"),
        ("[[1],[1,2]]", "FP32", "lists of one level differ in length"),
        ("5", "FP32", "got a single value; the model takes FP32"),
        ("/no/such.npy", "FP32", "cannot read /no/such.npy"),
        ("/no/such.json", "FP32", "cannot read /no/such.json"),
        ("/no/such.png", "FP32", "cannot read /no/such.png"),
    ],
)
def test_value_out_of_range_is_named(value, datatype, text):
    with pytest.raises(CommandFailed, match=text.replace("[", r"\[")) as caught:
        read_one(value, datatype, (-1, -1))
    assert caught.value.exit_code is ExitCode.USAGE


def test_files_with_the_wrong_content_are_named(tmp_path):
    for suffix in ("npy", "json", "png"):
        file = tmp_path / f"bad.{suffix}"
        file.write_bytes(b"\x00\x01")
        with pytest.raises(CommandFailed, match=r"bad\." + suffix):
            read_one(file, shape=(8, 8))
    np.save(tmp_path / "complex.npy", np.zeros(4, np.complex64))
    with pytest.raises(CommandFailed, match="takes FP32, the file holds complex64"):
        read_one(tmp_path / "complex.npy")
    np.save(tmp_path / "numbers.npy", np.zeros(4))
    with pytest.raises(CommandFailed, match="takes BYTES, the file holds float64"):
        read_one(tmp_path / "numbers.npy", "BYTES")


def test_assignments_are_checked():
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    for given_inputs, text in ((["x"], "expected NAME=VALUE"), (["y=1"], "no input 'y'; it has x"), (["x=[1]", "x=[1]"], "given twice")):
        with pytest.raises(CommandFailed, match=text):
            read_inputs(given_inputs, metadata, PictureOptions())


@pytest.fixture
def picture(tmp_path):
    """4 x 2 pixels: the left half pure red, the right half white."""
    pixels = np.full((2, 4, 3), 255, np.uint8)
    pixels[:, :2] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def test_picture_fits_planes_first_and_last(picture):
    planes = read_one(picture, shape=(-1, 3, 2, 4))
    assert planes.shape == (1, 3, 2, 4)
    np.testing.assert_array_equal(planes[0, 0], np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(planes[0, 1], [[0, 0, 1, 1]] * 2)
    interleaved = read_one(picture, shape=(-1, 2, 4, 3))
    np.testing.assert_array_equal(interleaved[0].transpose(2, 0, 1), planes[0])


def test_picture_becomes_grey_and_takes_the_models_size(picture):
    grey = read_one(picture, shape=(-1, 8, 8))
    assert grey.shape == (1, 8, 8)
    assert grey.dtype == np.float32
    assert grey[0, 0, 0] == pytest.approx(76 / 255)
    assert grey[0, 0, -1] == 1.0


def test_model_without_a_size_gets_the_pictures_size(picture):
    assert read_one(picture, shape=(-1, 3, -1, -1)).shape == (1, 3, 2, 4)
    assert read_one(picture, shape=(3, -1, -1)).shape == (3, 2, 4)
    assert read_one(picture, shape=(-1, -1, 3)).shape == (2, 4, 3)


def test_integers_get_0_to_255(picture):
    array = read_one(picture, "UINT8", (2, 4, 3))
    assert array.dtype == np.uint8
    assert array[0].tolist() == [[255, 0, 0]] * 2 + [[255, 255, 255]] * 2


@pytest.mark.parametrize(("text", "low", "high"), [("0-16", 0, 16), ("-1-1", -1, 1), ("0.5-1", 0.5, 1), ("1--1", 1, -1)])
def test_scale_sets_the_values_of_black_and_white(picture, text, low, high):
    plane = read_one(picture, shape=(3, 2, 4), scale=Scale.parse(text))[1]
    assert (plane[0, 0], plane[0, 3]) == (low, high)


def test_inverting_exchanges_black_and_white(picture):
    assert read_one(picture, shape=(3, 2, 4), invert=True)[1].tolist() == [[1, 1, 0, 0]] * 2


@pytest.mark.parametrize("text", ["", "1", "0:1", "a-b", "0-"])
def test_malformed_scale_is_named(text):
    with pytest.raises(CommandFailed, match="expected LOW-HIGH"):
        Scale.parse(text)


@pytest.mark.parametrize("shape", [(-1, 5), (-1, 5, 8, 8), (8,), (-1, 2, 3, 4, 5)])
def test_input_that_is_not_a_picture_is_named(picture, shape):
    if shape == (-1, 5):
        assert read_one(picture, shape=shape).shape == (2, 5)  # reads as height and width
        return
    with pytest.raises(CommandFailed, match="which is not a picture's"):
        read_one(picture, shape=shape)


def test_missing_pillow_is_named_with_the_package_to_install(picture, monkeypatch):
    real_import = builtins.__import__

    def no_pillow(name, *arguments, **keywords):
        if name == "PIL":
            raise ImportError(name)
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", no_pillow)
    with pytest.raises(CommandFailed, match="pip install Pillow"):
        read_one(picture, shape=(8, 8))
