"""Large infer requests in JSON, parsed in short steps.

A JSON parser holds the GIL until it has parsed the whole text, also in a thread: 60 MB of numbers block the event loop for 0.6 to 0.9 s,
and take four times their size as Python objects. So the numbers of each long `"data"` array are cut out first and converted to an array
some thousand at a time; the rest is parsed as usual. This blocks the event loop for at most 0.1 s at 60 MB, and 0.02 s instead of 0.1 s at
8 MB.

This also takes half to three quarters of the time of orjson with numpy, and as long as msgspec with a declared type, which also holds the
GIL. ADR 75 has the figures.

A text that this module cannot parse goes to the ordinary parser, which reports the error.
"""

import re
import secrets
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import bracket_levels, parse_tensor_json
from stoker.server.codecs.tensors import packed
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array

# In JSON an unescaped `"data"` before a colon is a key: a string cannot hold it.
_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_FLATTEN: Final = bytes.maketrans(b"[]", b"  ")
_STEP_BYTES: Final = 128 * 1024
_SHORT_BYTES: Final = 64 * 1024


def parse_infer_json(text: bytes, limits: Limits) -> Any:
    """As `parse_tensor_json`, but a long numeric `data` of an input becomes a flat int64 or float64 array instead of a list.

    Raises:
        InvalidRequest: as `parse_tensor_json`.
    """
    if len(text) <= _SHORT_BYTES:
        return parse_tensor_json(text, limits)
    runs: dict[str, Array] = {}
    parts: list[bytes] = []
    at = 0
    while (found := _DATA.search(text, at)) is not None:
        start, end = found.end(), _run_end(text, found.end())
        numbers = _numbers(text[start:end], limits) if end - start > _SHORT_BYTES else None
        parts.append(text[at:start])
        if numbers is None:
            parts.append(text[start:end])
        else:
            # A random placeholder, so that no client can refer to the numbers of another tensor.
            mark = secrets.token_hex(16)
            runs[mark] = numbers
            parts.append(b'"%b"' % mark.encode())
        at = end
    if not runs:
        return parse_tensor_json(text, limits)
    head = parse_tensor_json(b"".join((*parts, text[at:])), limits)
    inputs = head.get("inputs") if isinstance(head, dict) else None
    for tensor in inputs if isinstance(inputs, list) else ():
        data = tensor.get("data") if isinstance(tensor, dict) else None
        if isinstance(data, str) and data in runs:
            tensor["data"] = runs[data]
    return head


def _run_end(text: bytes, start: int) -> int:
    """The end of the array at `start` if it holds only numbers and arrays: before the next string or end of an object."""
    quote = text.find(b'"', start)
    end = len(text) if quote < 0 else quote
    # The search ends at the quote, so that a text of many array starts is still scanned only once.
    brace = text.find(b"}", start, end)
    end = end if brace < 0 else brace
    return text.rfind(b"]", start, end) + 1 or end


def _numbers(run: bytes, limits: Limits) -> Array | None:
    """The numbers of `run`, at any nesting; None unless it is one well-formed array of integers or floats."""
    if not run.endswith(b"]") or bracket_levels(run[1:-1], limits.json_depth) is None:
        return None
    pieces: list[Array] = []
    at, end = 1, len(run) - 1
    while at < end:
        chunk_end = run.find(b",", at + _STEP_BYTES, end)
        chunk_end = end if chunk_end < 0 else chunk_end
        # Brackets become blanks: the numbers are still separated by commas, or else rejected.
        text = b"[%b]" % run[at:chunk_end].translate(_FLATTEN)
        piece = _special_piece(text, limits) if b"N" in text or b"I" in text else _piece(text)
        if piece is None:
            return None
        pieces.append(piece)
        at = chunk_end + 1
    if run[end - 1 : end] == b",":
        return None
    return np.concatenate(pieces) if pieces else None


def _piece(text: bytes) -> Array | None:
    """The numbers of the flat list `text`; None if it is empty or holds other values."""
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    kind = DataType.FP64 if b"." in text or b"e" in text or b"E" in text else DataType.INT64
    raw = packed(values, kind, text)
    return np.frombuffer(raw, kind.numpy) if raw else None


def _special_piece(text: bytes, limits: Limits) -> Array | None:
    """As `_piece`, for numbers that may include NaN and infinities."""
    try:
        values = parse_tensor_json(text, limits)
    except InvalidRequest:
        return None
    return np.array(values, dtype=np.float64) if set(map(type, values)) <= {int, float} else None
