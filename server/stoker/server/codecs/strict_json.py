"""Strict JSON parsing: bounded depth, estimated memory, no repeated keys.

JSON parsers keep the last of two members with the same key, and two parsers may keep different ones, so such objects are rejected. Counting
colons finds them. A JSON text has one colon for each member, and the colons inside its strings. The parsed value has as many members and
the same strings, unless an object repeated a key: then it lacks the colons of the member that was dropped. A short text, or one that holds
mostly objects and strings, is serialised again, and the colons of that text are counted. In other values the dictionaries and strings are
visited, and lists of numbers, which take longest, are visited last. The visit ends as soon as all colons are found.
"""

import gc
import json
import re
from typing import Any, Final

import orjson

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.server.core.limits import Limits

#: Up to this size, and in a larger text with at least one object or quote per so many bytes, serialising the value again is faster than a
#: visit.
_SHORT_BYTES: Final = 4096
_OBJECT_PART: Final = 256
_QUOTE_PART: Final = 32
#: Largest text that is serialised again: both texts are in memory at once.
_MOST_WRITTEN_BYTES: Final = 4 << 20
#: Longer lists are visited last, because most are the numbers of a tensor.
_SHORT_LIST: Final = 64
#: The escape of a colon in a JSON string.
_ESCAPE_START: Final = b"\\u003"
_ESCAPED_COLONS: Final = (b"\\u003a", b"\\u003A")


class RepeatedKey(InvalidRequest):
    """An object has a key twice."""


def check_keys(text: bytes, value: Any) -> None:
    """Rejects `text`, which was parsed as `value`, if an object has a key twice.

    Raises:
        RepeatedKey: an object has a key twice.
    """
    colons = text.count(b":")
    if not colons:
        return
    # Most texts have no escape; a search for one byte takes a tenth of the time of a search for several.
    if b"\\" in text and _ESCAPE_START in text:
        # An escaped backslash before `u003a` is no escape of a colon.
        unescaped = text.replace(b"\\\\", b"")
        colons += sum(map(unescaped.count, _ESCAPED_COLONS))
    size = len(text)
    is_written_fast = size <= _SHORT_BYTES or (
        size <= _MOST_WRITTEN_BYTES and max(_OBJECT_PART * text.count(b"{"), _QUOTE_PART * text.count(b'"')) > size
    )
    # A value never has more colons than its text.
    if (orjson.dumps(value).count(b":") if is_written_fast else _colons_of(value, colons)) != colons:
        raise RepeatedKey("failed to parse the request JSON buffer: an object has the same key more than once")


def _colons_of(value: Any, most: int) -> int:
    """The number of colons of `value` in JSON; the count stops at `most`."""
    found = 0
    stack: list[Any] = [value]
    long_lists: list[list[Any]] = []
    while found < most and (stack or long_lists):
        if stack:
            each = stack.pop()
            if type(each) is list and len(each) > _SHORT_LIST:
                long_lists.append(each)
                continue
        else:
            each = long_lists.pop()
        if type(each) is str:
            found += each.count(":")
            continue
        items: Any = each
        if type(each) is dict:
            items = each.values()
            found += len(each) + "".join(each).count(":")
        elif type(each) is not list:
            continue
        kinds = set(map(type, items))
        if str in kinds:
            found += "".join(items if len(kinds) == 1 else [item for item in items if type(item) is str]).count(":")
        if dict in kinds or list in kinds:
            stack += [item for item in items if type(item) is dict or type(item) is list]
    return found


# An unterminated string matches to its end too: a pattern that failed there would be tried again at every quote inside.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND: Final = bytes.maketrans(b"[{]}", b"(())")
#: Approximate bytes that CPython takes for one parsed value, list and dictionary.
_VALUE_BYTES: Final = 32
_ARRAY_BYTES: Final = 88
_OBJECT_BYTES: Final = 300
_LARGE_BYTES: Final = 1 << 20

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
    """Parses `text`. REQUIRES: `memory_cost` has accepted it.

    Raises:
        InvalidRequest: the text is not JSON, is nested too deeply, or an object in it has a key twice.
    """
    value = _parsed(text, limits)
    check_keys(text, value)
    return value


def check_depth(text: bytes, limits: Limits) -> None:
    """Rejects `text` if its brackets nest too deeply or do not match.

    Raises:
        InvalidRequest: the brackets nest too deeply or do not match.
    """
    # The result for unmatched brackets is None too; the parser would reject those as well.
    if text.count(b"[") + text.count(b"{") > limits.json_depth and bracket_levels(text, limits.json_depth) is None:
        raise InvalidRequest(f"JSON is nested more than {limits.json_depth} levels deep, or its brackets do not match")


def _parsed(text: bytes, limits: Limits) -> Json:
    check_depth(text, limits)
    # Parsing creates no garbage, and garbage collections after every few thousand objects make it six times slower.
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
        InvalidRequest: as `parse_json`. TooLarge: a text with such words exceeds the limit for them.
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
    # The standard library's parser accepts these words, but is lenient otherwise: so the text is first parsed strictly with the words
    # replaced. Replacements inside strings do not matter, because that result is dropped.
    _parsed(text.replace(b"-Infinity", b"null").replace(b"Infinity", b"null").replace(b"NaN", b"null"), limits)
    try:
        value = json.loads(text.decode(), parse_constant=float, parse_int=_integer)
    except ValueError as error:  # an escape such as `\N`
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None
    check_keys(text, value)
    return value


def _integer(digits: str) -> int | float:
    """The integer as orjson parses it: a float if it exceeds 64 bits."""
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
    """The nesting depth of the brackets of `text` outside strings; None if they do not match or nest deeper than `most`."""
    if b'"' in text:
        text = _STRING.sub(b"", text)
    brackets = text.translate(_ROUND, _NOT_BRACKETS)
    too_deep = b"(" * (most + 1)
    for level in range(most + 1):
        if not brackets:
            return level
        if too_deep in brackets:
            return None
        # All brackets are the same character pair here, so that each round removes the innermost level.
        peeled = brackets.replace(b"()", b"")
        if len(peeled) == len(brackets):
            return None
        brackets = peeled
    return None
