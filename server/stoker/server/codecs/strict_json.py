"""JSON from strangers: bounded before it is parsed, strict where orjson is lenient.

A JSON text is an amplifier: a few bytes become an object of a hundred. So its structure bytes are counted first, at memory speed, and
the counts are both bounded and priced (`memory_cost`). Depth is measured by peeling brackets, without walking the text in Python. orjson
itself refuses NaN, Infinity, 1e999, lone surrogates and text that is not UTF-8; tensors may hold the first two (`parse_tensor_json`). It
keeps the last of several members of one name: those are found by counting (`json_keys.py`).
"""

import gc
import json
import re
from typing import Any

import orjson

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.server.codecs.json_keys import check_keys
from stoker.server.core.limits import Limits

# An unterminated string matches to its end too: a pattern that failed there would be tried again at every quote inside.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ROUND = bytes.maketrans(b"[{]}", b"(())")
#: What CPython takes for one parsed value, list and dictionary, roundly.
_VALUE_BYTES, _ARRAY_BYTES, _OBJECT_BYTES = 32, 88, 300
_LARGE_BYTES = 1 << 20

Json = Any


def memory_cost(text: bytes, limits: Limits) -> int:
    """Bytes of memory that parsing `text` takes, the text itself not counted.

    Raises:
        TooLarge: the text, or the number of its values, arrays or objects, exceeds the limits.
    """
    if len(text) > limits.json_bytes:
        raise TooLarge(f"JSON of {len(text)} bytes exceeds the limit of {limits.json_bytes} bytes; send large tensors as binary data")
    values, arrays, objects = text.count(b","), text.count(b"["), text.count(b"{")
    for count, most, kind in (
        (values, limits.json_values, "values"),
        (arrays, limits.json_arrays, "arrays"),
        (objects, limits.json_objects, "objects"),
    ):
        if count > most:
            raise TooLarge(f"JSON holds {count} {kind}, more than the {most} allowed; send large tensors as binary data")
    return values * _VALUE_BYTES + arrays * _ARRAY_BYTES + objects * _OBJECT_BYTES


def parse_json(text: bytes, limits: Limits) -> Json:
    """The value of `text`, which `memory_cost` has passed.

    Raises:
        InvalidRequest: it is not JSON, nested too deeply, or an object in it has a key twice.
    """
    value = _parsed(text, limits)
    check_keys(text, value)
    return value


def _parsed(text: bytes, limits: Limits) -> Json:
    # Brackets that do not match come back as None too; those the parser would refuse anyhow.
    if text.count(b"[") + text.count(b"{") > limits.json_depth and bracket_levels(text, limits.json_depth) is None:
        raise InvalidRequest(f"JSON is nested more than {limits.json_depth} levels deep, or its brackets do not match")
    # A parse makes only live objects: letting the collector look at every few thousand of them makes it six times slower.
    was_collecting = len(text) > _LARGE_BYTES and gc.isenabled()
    if was_collecting:
        gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None
    finally:
        if was_collecting:
            gc.enable()


def parse_tensor_json(text: bytes, limits: Limits) -> Json:
    """As `parse_json`, but `NaN`, `Infinity` and `-Infinity` are numbers, as Triton and TensorFlow Serving read them (RapidJSON's
    `kParseNanAndInfFlag`), and as Python's `json` writes them.

    Raises:
        InvalidRequest: as `parse_json`. TooLarge: such words stand in a text of more than the limit for that.
    """
    try:
        value = _parsed(text, limits)
    except InvalidRequest as error:
        if b"NaN" not in text and b"Infinity" not in text:
            raise
        wrong = error
    else:
        check_keys(text, value)
        return value
    if len(text) > limits.json_special_bytes:
        allowed = f"NaN and Infinity may stand in JSON of up to {limits.json_special_bytes} bytes; send large tensors as binary data"
        raise TooLarge(f"{wrong.message}; {allowed}")
    # The standard library's parser knows these words but is lenient elsewhere: the text around them is held to the same rules first.
    # What is replaced inside strings does no harm there, as that result is dropped.
    _parsed(text.replace(b"-Infinity", b"null").replace(b"Infinity", b"null").replace(b"NaN", b"null"), limits)
    try:
        value = json.loads(text.decode(), parse_constant=float, parse_int=_integer)
    except ValueError as error:  # an escape such as `\N`
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None
    check_keys(text, value)
    return value


def _integer(digits: str) -> int | float:
    """What orjson makes of an integer: a float where 64 bits do not hold it."""
    number = int(digits)
    return number if -(1 << 63) <= number < 1 << 64 else float(number)


def parse_bounded(text: bytes, limits: Limits) -> Json:
    """`memory_cost` and `parse_json` in one, for small control requests.

    Raises:
        TooLarge, InvalidRequest: as those.
    """
    memory_cost(text, limits)
    return parse_json(text, limits)


def bracket_levels(text: bytes, most: int) -> int | None:
    """How deep the brackets of `text` nest, strings not counted; None if they do not match or nest deeper than `most`."""
    if b'"' in text:
        text = _STRING.sub(b"", text)
    brackets = text.translate(_ROUND, _NOT_BRACKETS)
    too_deep = b"(" * (most + 1)
    for level in range(most + 1):
        if not brackets:
            return level
        if too_deep in brackets:
            return None
        # All brackets look alike here, so that each round takes away exactly the innermost level.
        peeled = brackets.replace(b"()", b"")
        if len(peeled) == len(brackets):
            return None
        brackets = peeled
    return None
