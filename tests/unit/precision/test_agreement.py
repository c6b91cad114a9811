"""`agree`: rounding errors are accepted, all others are not, whatever else the array contains."""

import numpy as np
import pytest

from stoker.compiler.precision.drift import agree

VALUES = np.array([0.5, -2.0, 1.25, 0.0], np.float32)


def test_rounding_errors_agree_and_larger_ones_do_not() -> None:
    assert agree(VALUES, VALUES)
    assert agree(VALUES + np.float32(1e-4), VALUES)
    assert not agree(VALUES + np.float32(1e-2), VALUES)
    assert not agree(VALUES[:2], VALUES)


@pytest.mark.parametrize("huge", [np.inf, -np.inf, np.nan, -3.4e38, 1e30, -1e9])
def test_huge_value_does_not_hide_errors_of_others(huge: float) -> None:
    wanted = np.append(VALUES, np.float32(huge))
    assert agree(wanted, wanted)
    assert not agree(np.append(VALUES + np.float32(0.1), np.float32(huge)), wanted)


@pytest.mark.parametrize(("found", "wanted"), [(np.inf, -np.inf), (np.inf, 3.4e38), (np.nan, 1.0), (1.0, np.nan), (0.0, np.inf)])
def test_infinities_and_nan_must_have_the_same_positions(found: float, wanted: float) -> None:
    assert not agree(np.append(VALUES, np.float32(found)), np.append(VALUES, np.float32(wanted)))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_different_whole_numbers_disagree(dtype: type[np.generic]) -> None:
    wanted = np.zeros(10_000, dtype)
    found = wanted.copy()
    found[17] = 1
    assert agree(wanted, wanted.copy())
    assert not agree(found, wanted)


def test_different_texts_disagree() -> None:
    assert agree(np.array(["a", "b"], object), np.array(["a", "b"], object))
    assert not agree(np.array(["a", "c"], object), np.array(["a", "b"], object))


def test_empty_or_zero_arrays_agree() -> None:
    assert agree(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert agree(np.zeros(3, np.float16), np.zeros(3, np.float16))
