"""Samples: converted to the model's types without loss, cut into batches, and some of them held out of calibration."""

import logging
import pickle
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from stoker.compiler.errors import OptionError
from stoker.compiler.passes import get_pass
from stoker.compiler.precision.samples import batches_of, cast_feeds, exact_cast, random_batches, split
from tests.fakes.graphs import parse


def value(kind: ir.DataType, shape: tuple[int, ...] = (4, 2)) -> ir.Value:
    return ir.Value(name="x", type=ir.TensorType(kind), shape=ir.Shape(shape))


@pytest.mark.parametrize(
    ("array", "kind", "text"),
    [
        (
            np.array([[0.25, 0.5]], np.float32),
            ir.DataType.UINT8,
            r"2 of 2 values do not fit UINT8 \(0.25, 0.5\); expected whole numbers from 0 to 255",
        ),
        (np.array([[0.25, 1]], np.float32), ir.DataType.UINT8, "these look like normalised pixels: give the bytes"),
        (np.array([256, 3], np.int64), ir.DataType.UINT8, r"1 of 2 values do not fit UINT8 \(256\)"),
        (np.array([-1], np.int64), ir.DataType.UINT8, r"do not fit UINT8 \(-1\)"),
        (np.array([-1], np.int8), ir.DataType.UINT8, r"do not fit UINT8 \(-1\)"),
        (np.array([2**63], np.uint64), ir.DataType.INT64, "do not fit INT64"),
        (np.array([2.0**63], np.float64), ir.DataType.INT64, "do not fit INT64"),
        (
            np.array([2**31], np.int64),
            ir.DataType.INT32,
            r"do not fit INT32 \(2147483648\); expected whole numbers from -2147483648 to 2147483647",
        ),
        (np.array([np.nan], np.float32), ir.DataType.INT32, r"do not fit INT32 \(nan\)"),
        (np.array([np.inf], np.float32), ir.DataType.INT64, r"do not fit INT64 \(inf\)"),
        (np.array([2], np.int32), ir.DataType.BOOL, r"do not fit BOOL \(2\); expected whole numbers from 0 to 1"),
        (
            np.array([1e5, 1], np.float32),
            ir.DataType.FLOAT16,
            r"do not fit FLOAT16 \(100000\); expected numbers that FLOAT16 holds \(largest 65504\)",
        ),
        (np.array([1e300], np.float64), ir.DataType.FLOAT, "do not fit FLOAT "),
        (np.array([1e300], np.float64), ir.DataType.BFLOAT16, "do not fit BFLOAT16 "),
        (np.array([1e-9, 0, 0], np.float32), ir.DataType.FLOAT16, r"1 of 3 values do not fit FLOAT16 \(1e-09\)"),
        (np.array([1], np.float32), ir.DataType.STRING, "the samples are of float32, and the input is STRING"),
    ],
)
def test_value_out_of_its_inputs_range_is_refused(array: NDArray[np.generic], kind: ir.DataType, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        exact_cast(array, value(kind))


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([0, 255], np.float32), ir.DataType.UINT8),
        (np.bool_([True, False]), ir.DataType.INT32),
        (np.array([0, 1], np.int64), ir.DataType.BOOL),
        (np.array([0.1, np.inf, np.nan], np.float64), ir.DataType.FLOAT),
        (np.array([0.1, 1e-9], np.float32), ir.DataType.FLOAT16),
        (np.array([0.1, 3], np.float32), ir.DataType.BFLOAT16),
        (np.array([-(2**31), 2**31 - 1], np.int64), ir.DataType.INT32),
        (np.array([], np.float32), ir.DataType.INT32),
    ],
)
def test_value_in_its_inputs_range_is_converted(array: NDArray[np.generic], kind: ir.DataType) -> None:
    found = exact_cast(array, value(kind))
    assert found.dtype == kind.numpy()
    np.testing.assert_allclose(found.astype(np.float64), array.astype(np.float64), rtol=0.01, atol=1e-8)


def test_error_names_file_and_input() -> None:
    with pytest.raises(OptionError, match=r"calibration data 'pixels.npz', input 'x': 8 of 8 values do not fit UINT8"):
        batches_of([value(ir.DataType.UINT8)], {"x": np.full((4, 2), 0.5)}, file=Path("pixels.npz"))


def test_feeds_of_another_conversion_are_not_wrapped_around() -> None:
    with pytest.raises(OptionError, match="do not fit INT32"):
        cast_feeds({"x": np.array([[2**40]], np.int64)}, [value(ir.DataType.INT32)])


def test_fp8_calibration_refuses_them_with_the_file(tmp_path: Path) -> None:
    model = parse("g (uint8[2,3] x) => (float[2,3] y) { f = Cast<to = 1>(x) y = MatMul(f, w) }", {"w": np.ones((3, 3), np.float32)})
    path = tmp_path / "samples.pkl"
    path.write_bytes(pickle.dumps({"x": np.full((8, 3), 0.5, np.float32)}))
    with pytest.raises(OptionError, match=r"samples.pkl', input 'x': 24 of 24 values do not fit UINT8"):
        get_pass("float_to_fp8", calibration_with_data=True, data_preprocess=path)(model)


def test_rows_of_an_incomplete_last_batch_are_filled_with_the_first(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        first, second, third = batches_of([value(ir.DataType.FLOAT)], {"x": np.arange(20, dtype=np.float32).reshape(10, 2)})
    assert first["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert second["x"].tolist() == [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert third["x"].tolist() == [[16, 17], [18, 19], [0, 1], [2, 3]]
    assert "has 10 rows, not a multiple of the batch size 4: the first 2 rows are taken twice" in caplog.text


def test_few_rows_fill_one_batch() -> None:
    (batch,) = batches_of([value(ir.DataType.FLOAT)], {"x": np.ones((1, 2), np.float32)})
    assert batch["x"].shape == (4, 2)


def test_every_fourth_sample_is_held_out() -> None:
    found = split(list(range(10)))
    assert (found.calibration, found.report, found.is_held_out) == ([0, 1, 2, 4, 5, 6, 8, 9], [3, 7], True)


def test_no_sample_is_held_out_of_few() -> None:
    found = split([1, 2, 3])
    assert (found.calibration, found.report, found.is_held_out) == ([1, 2, 3], [1, 2, 3], False)
    assert not split(list(range(10)), least=16).is_held_out


def test_random_strings_are_text() -> None:
    (batch,) = random_batches([value(ir.DataType.STRING)], count=1)
    assert set(batch["x"].ravel().tolist()) <= {"0", "1"}
    assert batch["x"].dtype == object
