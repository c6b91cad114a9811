"""F143 and F152, the eight-bit floats of the IPU, bit by bit.

A code has one sign bit, 4 or 5 exponent bits and 3 or 2 mantissa bits. There is one NaN, code 0x80, where other formats have -0; there is
no infinity. Codes are `ml_dtypes`' `float8_e4m3fnuz` and `float8_e5m2fnuz`, which ONNX has as `FLOAT8E4M3FNUZ` and `FLOAT8E5M2FNUZ`.

| format | bias | smallest | largest |
|---|---|---|---|
| F143 | 8 | 2^-10 | 240 |
| F152 | 16 | 2^-17 | 57344 |

A tensor has one scale beside its codes, an integer from -32 to 31. **Two opposite signs of it are in use.** Here, in Poplar's metadata
and in PopRT's `fp8_params`, `value = code x 2^scale`: a larger scale reaches further and is coarser. popxl's host casts take a `log2_scale`
that the source is multiplied by, `code = source x 2^log2_scale`: the same number with the other sign; `from_log2_scale` turns it.

Source of formats, rounding and overflow: PopART's open code and its tests. (PopRT's table of the formats has other smallest and largest
values; it contradicts its own biases.)
"""

import enum
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stoker.compiler.errors import OptionError

NAN_CODE: Final = 0x80
MAX_CODE: Final = 0x7F
#: Scales are in [MIN_SCALE, MAX_SCALE]: six signed bits of the hardware's metadata.
MIN_SCALE: Final = -32
MAX_SCALE: Final = 31


class Float8Format(enum.Enum):
    """The split of the eight bits into exponent and mantissa."""

    F143 = "F143"
    F152 = "F152"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype (of ml_dtypes) whose bits are this format's codes at scale 0."""
        dtype: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fnuz if self is Float8Format.F143 else ml_dtypes.float8_e5m2fnuz)
        return dtype

    @property
    def max(self) -> float:
        """Returns the largest value at scale 0."""
        return 240.0 if self is Float8Format.F143 else 57344.0

    @property
    def smallest(self) -> float:
        """Returns the smallest value above zero at scale 0, which is subnormal."""
        return 2.0**-10 if self is Float8Format.F143 else 2.0**-17

    @classmethod
    def parse(cls, text: str) -> "Float8Format":
        """Returns the format with that name, ignoring case.

        Raises:
            OptionError: there is none.
        """
        try:
            return cls(text.strip().upper())
        except ValueError:
            raise OptionError(f"'{text}' is no 8-bit float format; expected F143 or F152") from None


def check_scale(scale: int, of: str = "scale") -> int:
    """Returns `scale` if the hardware supports it.

    Raises:
        OptionError: it is not an integer in [-32, 32); the text calls it `of`.
    """
    if isinstance(scale, bool) or not isinstance(scale, int | np.integer) or not MIN_SCALE <= scale <= MAX_SCALE:
        raise OptionError(f"{of} is {scale!r}; expected an integer in [{MIN_SCALE}, {MAX_SCALE + 1})")
    return int(scale)


def from_log2_scale(log2_scale: int) -> int:
    """The scale (`value = code x 2^scale`) that popxl's host casts call `log2_scale` (`code = source x 2^log2_scale`)."""
    return check_scale(-log2_scale, f"scale of log2_scale {log2_scale}")


def encode(values: ArrayLike, float8_format: Float8Format, scale: int = 0, *, nan_on_overflow: bool = True) -> NDArray[np.uint8]:
    """Codes of `values`, rounded half to even from the exact value, so that decoding gives `code x 2^scale`.

    Args:
        values: Floats of 16, 32 or 64 bits, or integers, of any shape.
        float8_format: Of the codes.
        scale: In [-32, 32).
        nan_on_overflow: What a finite value that rounds beyond the largest becomes: NaN (0x80), or the largest of its sign (0x7F, 0xFF).
            Infinities and NaN are NaN either way.

    Returns:
        Codes in the shape of `values`.
    """
    source = np.asarray(values)
    exact = _round_to_odd(source) if source.dtype not in (np.float16, np.float32) else source.astype(np.float32, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        # Exact wherever it matters: what a float32 cannot hold after scaling rounds to 0, or is beyond the largest, all the same.
        scaled = np.ldexp(exact, -check_scale(scale)).astype(np.float32, copy=False)
        codes: NDArray[np.uint8] = np.asarray(scaled.astype(float8_format.dtype)).view(np.uint8)
    if not nan_on_overflow:
        overflowed = (codes == NAN_CODE) & np.isfinite(exact)
        if np.any(overflowed):
            codes = np.where(overflowed, np.where(exact < 0, MAX_CODE | 0x80, MAX_CODE), codes).astype(np.uint8)
    return codes


def decode(codes: ArrayLike, float8_format: Float8Format, scale: int = 0, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """`code x 2^scale` for every code, as `dtype`; float32 holds all of them exactly, float16 those in its range."""
    values = np.asarray(codes, np.uint8).view(float8_format.dtype).astype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(values, check_scale(scale)).astype(dtype))


def round_to_float8(values: NDArray[Any], float8_format: Float8Format, scale: int = 0, *, nan_on_overflow: bool = False) -> NDArray[Any]:
    """Rounds `values` to 8-bit floats and returns them in their original dtype."""
    return decode(encode(values, float8_format, scale, nan_on_overflow=nan_on_overflow), float8_format, scale, values.dtype)


def _round_to_odd(values: NDArray[Any]) -> NDArray[np.float32]:
    """`values` as float32, inexact ones with their last bit set, so that rounding once more does not see a tie where there was none.

    ml_dtypes casts a float64 by way of a rounded float32, which rounds twice.
    """
    exact = values.astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = exact.astype(np.float32)
        is_inexact = np.isfinite(exact) & (nearest.astype(np.float64) != exact)
        is_beyond = is_inexact & (np.abs(nearest.astype(np.float64)) > np.abs(exact))
        towards_zero = np.where(is_beyond, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float32)
    odd: NDArray[np.float32] = (towards_zero.view(np.uint32) | is_inexact.astype(np.uint32)).view(np.float32)
    return odd
