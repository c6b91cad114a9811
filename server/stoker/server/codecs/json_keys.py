"""Objects that have a key twice, found by counting: parsers keep the last such member, and two parsers may keep different ones.

A JSON text has as many members as it has colons outside strings; a parsed value, as its dictionaries have entries. The two numbers differ
exactly where an object repeats a key. A short text, or one that holds mostly objects and strings, is written anew from its value, and the
colons of both texts are compared. In others most is numbers, whose writing takes long: there the dictionaries are counted. Telling which
colons of a text stand in strings takes longest, and is done last.
"""

import re
from typing import Any, Final

import orjson

from stoker.backends.api.errors import InvalidRequest

#: A string that is not closed is one to the end: looking for its end from every quote within it would take quadratic time.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
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
    if entries != _STRING.sub(b"", text).count(b":"):
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
