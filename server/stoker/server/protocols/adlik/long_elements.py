"""Long tensors of Adlik's JSON requests: base64 text and lists of numbers, decoded straight into arrays, in short steps.

A JSON parser holds the GIL until it has parsed the whole text, also in a thread, and makes an object of 32 bytes or more for each number.
So long elements are found first, their memory is reserved, and they are decoded some hundred KiB of text at a time; other threads, the
event loop's too, run between the steps. The remainder of the text is parsed as usual.
"""

import binascii
import re
import secrets
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_plans import CONTENT
from stoker.server.core.request import Array
from stoker.server.protocols.adlik.json_codec import NUMBER_FIELDS, camel_case, read_numbers

#: Shorter elements are parsed with the remainder.
LONG_BYTES: Final = 64 * 1024
#: Text that is scanned, decoded from base64, and parsed as numbers in one step.
_SCAN_BYTES: Final = 1 << 20
#: A multiple of four, so that every piece of base64 is valid alone.
_BASE64_BYTES: Final = 1 << 20
_NUMBERS_BYTES: Final = 128 * 1024
_FIELDS: Final = {spelling: name for name in (CONTENT, *NUMBER_FIELDS) for spelling in (name, camel_case(name))}
# In JSON an unescaped name in quotes before a colon is a key: a string cannot hold it.
_KEY: Final = re.compile(rb'"(%b)"[ \t\r\n]*:[ \t\r\n]*(["\[])' % "|".join(_FIELDS).encode())
#: No match of `_KEY` is longer, unless more white space follows the name: such elements are parsed with the remainder.
_MOST_KEY_BYTES: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_NOT_BASE64: Final = f"{CONTENT} must be base64"


class LongElement:
    """The elements of one tensor in the text.

    Attributes:
        field: The field's name in snake_case.
        start: Where its value begins in the text, behind the quote or bracket; and where it ends.
        stop: See `start`.
        count: Elements of a list of numbers; bytes of base64 text, at most.
        decoded_bytes: Memory of the decoded elements.
    """

    __slots__ = ("count", "decoded_bytes", "field", "start", "stop")

    def __init__(self, field: str, start: int, stop: int, count: int) -> None:
        self.field = field
        self.start = start
        self.stop = stop
        self.count = count
        self.decoded_bytes = count if field == CONTENT else count * NUMBER_FIELDS[field].itemsize


def find_long_elements(text: memoryview) -> list[LongElement]:
    """The long elements of `text`, in their order; without base64 that has JSON's escapes, which the parser decodes. Safe in a thread."""
    found: list[LongElement] = []
    at = 0
    while at < len(text):
        window = bytes(text[at : at + _SCAN_BYTES])
        searched = 0
        while searched < len(window) and (match := _KEY.search(window, searched)) is not None:
            searched = match.end()
            is_list = match[2] == b"["
            field = _FIELDS[match[1].decode()]
            if is_list == (field == CONTENT):
                # Of the wrong type: the parser's usual path reports it.
                continue
            start = at + searched
            stop, commas, has_escape = _end(text, at, window, searched, b"]" if is_list else b'"')
            if stop - start > LONG_BYTES and (is_list or not has_escape):
                found.append(LongElement(field, start, stop, commas + 1 if is_list else (stop - start + 3) // 4 * 3))
            searched = stop - at
        if at + len(window) < len(text):
            # A key may begin at the end of this window.
            at += max(1, searched, len(window) - _MOST_KEY_BYTES)
        else:
            at = len(text)
    return found


def _end(text: memoryview, at: int, window: bytes, searched: int, mark: bytes) -> tuple[int, int, bool]:
    """The position in `text` of the next `mark`, or the end of the text; the number of commas before it; whether a backslash is before it.

    The search begins at `searched` in `window`, which is the text from `at` on.
    """
    commas = 0
    has_escape = False
    while True:
        found = window.find(mark, searched)
        end = len(window) if found < 0 else found
        commas += window.count(b",", searched, end)
        has_escape = has_escape or window.find(b"\\", searched, end) >= 0
        if found >= 0 or at + end == len(text):
            return at + end, commas, has_escape
        at, searched = at + end, 0
        window = bytes(text[at : at + _SCAN_BYTES])


def decode_long_elements(text: memoryview, elements: list[LongElement]) -> tuple[bytes, dict[str, Any]]:
    """The text without its long `elements`, each of which a mark in quotes replaces; and by mark, the decoded elements: a memoryview of
    `tensor_content`, a flat array of numbers. Safe in a thread.

    Raises:
        InvalidRequest: elements are not base64, or no numbers of the field's type.
    """
    parts: list[bytes | memoryview] = []
    decoded: dict[str, Any] = {}
    at = 0
    for element in elements:
        # Random, so that no client can refer to the elements of another tensor.
        mark = secrets.token_hex(16)
        values = _content(text, element) if element.field == CONTENT else _numbers(text, element)
        decoded[mark] = values
        # From the quote or bracket on.
        parts += (text[at : element.start - 1], b'"%b"' % mark.encode())
        at = element.stop + 1
    parts.append(text[at:])
    return b"".join(parts), decoded


def put_back(given: Json, decoded: dict[str, Any]) -> None:
    """Replaces the marks in the parsed body by the decoded elements."""
    inputs = given.get("inputs") if isinstance(given, dict) else None
    for tensor in inputs.values() if isinstance(inputs, dict) else ():
        for name, value in tensor.items() if isinstance(tensor, dict) else ():
            if isinstance(value, str) and value in decoded and name in _FIELDS:
                tensor[name] = decoded[value]


def _content(text: memoryview, element: LongElement) -> memoryview:
    """Decodes base64 of either alphabet; padding is optional."""
    target = np.empty(element.count, np.uint8)
    size = 0
    for at in range(element.start, element.stop, _BASE64_BYTES):
        piece = bytes(text[at : min(at + _BASE64_BYTES, element.stop)])
        if b"-" in piece or b"_" in piece:
            piece = piece.translate(_URL_SAFE)
        if at + _BASE64_BYTES >= element.stop:
            piece = piece.rstrip(b"=")
            piece += b"=" * (-len(piece) % 4)
        try:
            part = binascii.a2b_base64(piece, strict_mode=True)
        except binascii.Error:
            raise InvalidRequest(_NOT_BASE64) from None
        target[size : size + len(part)] = np.frombuffer(part, np.uint8)
        size += len(part)
    return target[:size].data.toreadonly()


def _numbers(text: memoryview, element: LongElement) -> Array:
    target = np.empty(element.count, NUMBER_FIELDS[element.field])
    size, at = 0, element.start
    while at < element.stop:
        piece = bytes(text[at : min(at + _NUMBERS_BYTES, element.stop)])
        if at + len(piece) < element.stop:
            comma = piece.rfind(b",")
            if comma < 0:
                raise _no_numbers(element.field)
            piece = piece[:comma]
        at += len(piece) + 1
        try:
            values = orjson.loads(b"[%b]" % piece)
        except orjson.JSONDecodeError:
            raise _no_numbers(element.field) from None
        if not values or size + len(values) > element.count:
            raise _no_numbers(element.field)
        target[size : size + len(values)] = read_numbers(element.field, values)
        size += len(values)
    if size != element.count:
        raise _no_numbers(element.field)
    return target


def _no_numbers(field: str) -> InvalidRequest:
    return InvalidRequest(f"failed to parse the request JSON buffer: {field} is no array of {NUMBER_FIELDS[field].name} numbers")
