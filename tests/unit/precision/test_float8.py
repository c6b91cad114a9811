"""F143 and F152 against the published values, and against arithmetic written out by hand for every code."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compiler.errors import OptionError
from stoker.compiler.precision.float8 import NAN_CODE, Float8Format, check_scale, decode, encode, from_log2_scale, round_to_float8

F143, F152 = Float8Format.F143, Float8Format.F152
FIELDS = {F143: (3, 8), F152: (2, 16)}


def value_of(code: int, float8_format: Float8Format) -> float:
    """The format's definition: (-1)^s x 2^(e - bias) x 1.m, subnormal where e is 0."""
    mantissa_bits, bias = FIELDS[float8_format]
    if code == NAN_CODE:
        return math.nan
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


@pytest.mark.parametrize("float8_format", Float8Format)
@pytest.mark.parametrize("scale", [-32, -5, 0, 1, 31])
def test_every_code_decodes_to_its_definition_and_back(float8_format: Float8Format, scale: int) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = np.array([value_of(code, float8_format) for code in range(256)]) * 2.0**scale
    decoded = decode(codes, float8_format, scale, np.float64)
    np.testing.assert_array_equal(decoded, expected)
    np.testing.assert_array_equal(encode(decoded, float8_format, scale), codes)
    np.testing.assert_array_equal(encode(decoded.astype(np.float32), float8_format, scale), codes)


@pytest.mark.parametrize(
    ("value", "float8_format", "log2_scale", "code"),
    [
        (0.75, F143, 0, 0b00111100),
        (0.75, F143, -2, 0b00101100),
        (0.75, F143, 1, 0b01000100),
        (0.25, F152, 0, 0b00111000),
        (0.25, F152, -3, 0b00101100),
    ],
)
def test_published_host_casts_of_popxl_have_the_other_sign(value: float, float8_format: Float8Format, log2_scale: int, code: int) -> None:
    scale = from_log2_scale(log2_scale)
    assert scale == -log2_scale
    assert encode(value, float8_format, scale) == code
    assert decode(code, float8_format, scale) == value


@pytest.mark.parametrize(("float8_format", "largest", "smallest"), [(F143, 240.0, 2.0**-10), (F152, 57344.0, 2.0**-17)])
def test_range_ends_have_their_values(float8_format: Float8Format, largest: float, smallest: float) -> None:
    assert float8_format.max == largest
    assert float8_format.smallest == smallest
    assert encode([largest, -largest, smallest, 0.0, -0.0], float8_format).tolist() == [0x7F, 0xFF, 1, 0, 0]
    # Half of the smallest is a tie, and goes to the even code 0; just above does not.
    assert encode([smallest / 2, np.nextafter(smallest / 2, 1)], float8_format).tolist() == [0, 1]


@pytest.mark.parametrize(("float8_format", "beyond", "within"), [(F143, 248.0, 247.9), (F152, 61440.0, 61439.0)])
def test_overflow_is_nan_or_the_largest(float8_format: Float8Format, beyond: float, within: float) -> None:
    assert encode([beyond, -beyond, within, -within], float8_format).tolist() == [NAN_CODE, NAN_CODE, 0x7F, 0xFF]
    assert encode([beyond, -beyond, 1e300, -1e300], float8_format, nan_on_overflow=False).tolist() == [0x7F, 0xFF, 0x7F, 0xFF]
    assert encode(np.array([3e38, -3e38], np.float32), float8_format, -32, nan_on_overflow=False).tolist() == [0x7F, 0xFF]
    for nan_on_overflow in (False, True):
        assert encode([np.inf, -np.inf, np.nan], float8_format, nan_on_overflow=nan_on_overflow).tolist() == [NAN_CODE] * 3


def test_250_saturates_to_the_largest_code_of_f143() -> None:
    assert encode(250, F143, nan_on_overflow=False) == 0x7F
    assert encode(250, F143) == NAN_CODE


@pytest.mark.parametrize("float8_format", Float8Format)
def test_ties_go_to_the_even_code(float8_format: Float8Format) -> None:
    low = np.arange(0x00, 0x7F, dtype=np.uint8)
    ties = (decode(low, float8_format, 0, np.float64) + decode(low + 1, float8_format, 0, np.float64)) / 2
    np.testing.assert_array_equal(encode(ties, float8_format), low + (low & 1))
    np.testing.assert_array_equal(encode(np.nextafter(ties, np.inf), float8_format), low + 1)
    np.testing.assert_array_equal(encode(np.nextafter(ties, -np.inf), float8_format), low)


@given(st.floats(-300, 300), st.integers(-3, 3), st.sampled_from(Float8Format))
def test_rounding_finds_the_nearest_value(value: float, scale: int, float8_format: Float8Format) -> None:
    grid = decode(np.delete(np.arange(256), NAN_CODE).astype(np.uint8), float8_format, scale, np.float64)
    rounded = float(round_to_float8(np.array([value], np.float64), float8_format, scale)[0])
    assert abs(rounded - value) == np.min(np.abs(grid - value))


@given(st.integers(0, 0xFFFF), st.integers(-32, 31), st.sampled_from(Float8Format))
def test_every_width_of_source_gives_the_same_code(bits: int, scale: int, float8_format: Float8Format) -> None:
    half = np.array([bits], np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        codes = {int(encode(half.astype(dtype), float8_format, scale)[0]) for dtype in (np.float16, np.float32, np.float64)}
    assert len(codes) == 1


@pytest.mark.parametrize("scale", [-33, 32, 1.0, "1", True])
def test_unsupported_scale_is_refused(scale: object) -> None:
    with pytest.raises(OptionError, match=r"expected an integer in \[-32, 32\)"):
        check_scale(scale)  # type: ignore[arg-type]


def test_formats_are_read_by_name() -> None:
    assert Float8Format.parse("f143") is F143
    assert Float8Format.parse(" F152 ") is F152
    with pytest.raises(OptionError, match=r"'E4M3' is no 8-bit float format; expected F143 or F152"):
        Float8Format.parse("E4M3")
