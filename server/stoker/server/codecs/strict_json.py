"""Strict JSON parsing: bounded depth, priced memory, no repeated keys.

JSON parsers keep the last of two members with the same key, and two parsers may keep different ones, so such objects are rejected. They
are found by counting: a JSON text has as many members as colons outside strings; a parsed value has as many as its dictionaries have
entries. The two numbers differ exactly where an object repeats a key. A short text, or one that holds mostly objects and strings, is
serialised again from its value, and the colons of both texts are compared. In other texts most of the value is numbers, which take long
to serialise: there the dictionaries are counted. Finding the colons inside strings takes longest, and is done last.
"""

import gc
import json
import re
from typing import Any, Final

import orjson

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.server.core.limits import Limits

#: A string that is not closed is one to the end: looking for its end from every quote within it would take quadratic time.
_STRING_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SPACED_COLONS: Final = (b" :", b"\t:", b"\n:", b"\r:")
#: Up to this size, and in a larger text with an object or a quote in so many bytes, writing the value anew is faster than counting entries.
_SHORT_BYTES, _OBJECT_PART, _QUOTE_PART = 4096, 256, 32
#: The new text stands in memory beside the old one.
_MOST_WRITTEN_BYTES: Final = 4 << 20
#: Longer lists are looked through last: mostly they are the numbers of a tensor, and all objects were found before.
_SHORT_LIST: Final = 64


class RepeatedKey(InvalidRequest):
    """An object has a key twice."""


def check_keys(text: bytes, value: Any) -> None:
    """Refuses `text`, which was parsed as `value`, where an object has a key twice.

    Raises:
        RepeatedKey: one has.
    """
    most_members = text.count(b":")
    if not most_members:
        return
    size, most_objects = len(text), 0
    if size > _SHORT_BYTES:
        most_objects = text.count(b"{")
        is_written_fast = size <= _MOST_WRITTEN_BYTES and max(_OBJECT_PART * most_objects, _QUOTE_PART * text.count(b'"')) > size
    else:
        is_written_fast = True
    if is_written_fast and b"\\u003" not in text:
        # Every colon of the new text stands in the old one; those of a member that was dropped do not stand in the new one.
        if _colons_of(value) == most_members:
            return
        raise _repeated()
    entries = _entries(value, most_objects or text.count(b"{"))
    # The text has at least as many members as the value has entries, and at most as many as it has colons.
    if entries == most_members:
        return
    # A colon that ends a member follows a quote; most colons in strings follow something else.
    if entries == text.count(b'":') + sum(map(text.count, _SPACED_COLONS)):
        return
    if entries != _STRING_TOKEN.sub(b"", text).count(b":"):
        raise _repeated()


def _repeated() -> RepeatedKey:
    return RepeatedKey("failed to parse the request JSON buffer: an object has the same key more than once")


def _colons_of(value: Any) -> int:
    return orjson.dumps(value).count(b":")


def _entries(value: Any, most_objects: int) -> int:
    """Entries of all dictionaries in `value`, of which there are `most_objects` at most."""
    entries = objects = 0
    stack: list[Any] = [value]
    long_lists: list[list[Any]] = []
    while stack or long_lists:
        if stack:
            each = stack.pop()
            if type(each) is list and len(each) > _SHORT_LIST:
                long_lists.append(each)
                continue
        else:
            each = long_lists.pop()
        if type(each) is dict:
            objects += 1
            entries += len(each)
            if objects == most_objects:
                break
            stack += [inner for inner in each.values() if type(inner) is dict or type(inner) is list]
        elif type(each) is list:
            kinds = set(map(type, each))
            if dict in kinds or list in kinds:
                stack += [inner for inner in each if type(inner) is dict or type(inner) is list]
    return entries


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
