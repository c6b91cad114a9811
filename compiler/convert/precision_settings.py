"""`Fp8Params`: formats and scales that FP8 conversion starts from, as one option writes them."""

from typing import Any, NamedTuple

from compiler.convert.option_fields import Kind

_FORMATS = ("F143", "F152")
_EXPECTED = "expected INPUT_FORMAT,WEIGHT_FORMAT,INPUT_SCALE,WEIGHT_SCALE such as F143,F143,-1,-1"


class Fp8Params(NamedTuple):
    """Formats `F143` or `F152`, and scales as powers of two in [-32, 32): value = code x 2^scale."""

    input_format: str = "F143"
    weight_format: str = "F143"
    input_scale: int = -1
    weight_scale: int = -1

    def __str__(self) -> str:
        return ",".join(str(each) for each in self)


def _parse(value: Any) -> Fp8Params:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or len(words) != 4:
        raise ValueError(f"{_EXPECTED}, got {value!r}")
    formats = [str(word).strip().upper() for word in words[:2]]
    for each in formats:
        if each not in _FORMATS:
            raise ValueError(f"'{each}' is no 8-bit format: F143 or F152")
    try:
        input_scale, weight_scale = (int(word) for word in words[2:])
    except (TypeError, ValueError):
        raise ValueError(f"{_EXPECTED}, got {value!r}") from None
    for scale in (input_scale, weight_scale):
        if not -32 <= scale < 32:
            raise ValueError(f"scale {scale} is out of range: -32 to 31")
    return Fp8Params(formats[0], formats[1], input_scale, weight_scale)


FP8_PARAMS = Kind("FP8 formats and scales", "F,F,N,N", _parse)
