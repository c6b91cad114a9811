"""Single fields of proto3 JSON, as its parsers take them: either spelling of a name, numbers as text, base64 of either alphabet.

Only what Adlik's requests are made of; no reflection, so that a million numbers cost no more than a list of them.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.strict_json import Json
from stoker.server.core.request import Array

#: Characters of base64 decoded at once: a multiple of four, so that every piece stands for itself.
_STEP: Final = 1 << 20
_URL_SAFE: Final = str.maketrans("-_", "+/")
#: No number has more characters than that.
_NUMBER_LENGTH: Final = 64


def member(given: Mapping[str, Json], name: str) -> Json:
    """The field `name` (in snake_case) of a JSON object, also under its camelCase name; None where it is missing or null."""
    value = given.get(name)
    if value is None and "_" in name:
        first, *others = name.split("_")
        value = given.get(first + "".join(part.capitalize() for part in others))
    return value


def as_object(value: Json, path: str) -> Mapping[str, Json]:
    """`value` as an object, empty where it is missing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must be an object")
    return value


def as_list(value: Json, path: str) -> list[Json]:
    """`value` as an array, empty where it is missing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} must be an array")
    return value


def as_text(value: Json, path: str) -> str:
    """`value` as text, empty where it is missing."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} must be a string")
    return value


def as_integer(value: Json, path: str, low: int, high: int) -> int:
    """`value` as an integer from `low` to `high`, which may be written as text; 0 where it is missing."""
    if value is None:
        return 0
    number = value
    is_digits = isinstance(value, str) and len(value) <= _NUMBER_LENGTH and value.isascii() and value.removeprefix("-").isdigit()
    if is_digits or (isinstance(value, float) and value.is_integer()):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise InvalidRequest(f"{path} must be an integer from {low} to {high}")
    return number


def as_bytes(value: Json, path: str) -> bytes:
    """The bytes that the base64 text `value` stands for; padding may be left out."""
    text = as_text(value, path).rstrip("=")
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    try:
        # In steps, because each holds the interpreter.
        pieces = [text[at : at + _STEP] for at in range(0, len(text), _STEP)]
        if pieces:
            pieces[-1] += "=" * (-len(pieces[-1]) % 4)
        return b"".join([base64.b64decode(piece, validate=True) for piece in pieces])
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{path} must be base64") from None


def as_integers(values: list[Json], path: str, dtype: type[np.generic]) -> Array:
    """A list of integers, each a number or text, as an array of `dtype`."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int}:
            return np.array(values, dtype=dtype)
        if kinds <= {int, str} and max(len(value) for value in values if isinstance(value, str)) <= _NUMBER_LENGTH:
            return np.array(list(map(int, values)), dtype=dtype)
        if kinds <= {int, float}:
            wide = np.array(values, dtype=np.float64)
            if bool((np.floor(wide) == wide).all()):
                return np.array(list(map(int, values)), dtype=dtype)
    except (OverflowError, ValueError):
        pass  # said below
    raise InvalidRequest(f"{path} must hold integers of {np.dtype(dtype).name}")


def as_floats(values: list[Json], path: str, dtype: type[np.generic]) -> Array:
    """A list of numbers, each a number or text (`"NaN"`, `"-Infinity"`), as an array of `dtype`."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float}:
            # What is too large becomes infinite, as in every other parser of this format.
            with np.errstate(over="ignore"):
                return np.array(values, dtype=np.float64).astype(dtype)
        if kinds <= {int, float, str} and max(len(value) for value in values if isinstance(value, str)) <= _NUMBER_LENGTH:
            with np.errstate(over="ignore"):
                return np.array(list(map(float, values)), dtype=np.float64).astype(dtype)
    except (OverflowError, ValueError):
        pass  # said below
    raise InvalidRequest(f"{path} must hold numbers")


def as_booleans(values: list[Json], path: str) -> Array:
    """A list of `true` and `false`."""
    if not set(map(type, values)) <= {bool}:
        raise InvalidRequest(f"{path} must hold true and false only")
    return np.array(values, dtype=np.bool_)


def printed_float(value: float) -> Any:
    """A number as proto3 JSON prints it: what JSON has no number for becomes text."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
