"""JSON values of TensorFlow Serving's REST interface to arrays, and the words it has for what is wrong with them.

Lists become arrays without a Python loop over elements: nesting is removed level by level, and the set of element types, which the
interpreter builds at C speed, tells whether every element is what the tensor wants.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import Json, parse_tensor_json
from stoker.server.codecs.tensor_bytes import object_array
from stoker.server.codecs.tensor_proto import type_name
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array

_B64: Final = "b64"
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
#: The largest whole number up to which every one is exact, by type.
_EXACT: Final = {DataType.FP16: (1 << 11) - 1, DataType.FP32: (1 << 24) - 1, DataType.FP64: (1 << 53) - 1}
_KINDS: Final = {type(None): "Null", dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
_SHOWN: Final = 128


class Nested(NamedTuple):
    """A value of any nesting, flattened: its shape, and its elements in row-major order."""

    shape: tuple[int, ...]
    elements: list[Any]


def parse(text: bytes, limits: Limits) -> Json:
    """The value of `text`, which `memory_cost` has passed; `NaN`, `Infinity` and `-Infinity` are numbers, as in TensorFlow Serving.

    Raises:
        InvalidRequest: it is not JSON, or nested too deeply.
    """
    try:
        return parse_tensor_json(text, limits)
    except InvalidRequest as error:
        raise InvalidRequest(f"JSON Parse error: {error.message}") from None


def is_base64(value: Json) -> bool:
    """Whether `value` is `{"b64": "..."}`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def decoded(value: Mapping[str, Any]) -> bytes:
    """The bytes of a `{"b64": "..."}`.

    Raises:
        InvalidRequest: it is not base64.
    """
    try:
        text = value[_B64].rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if "-" in text or "_" in text else None, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("Unable to base64 decode") from None


def flatten(value: Json) -> Nested:
    """`value` without its nesting.

    Raises:
        InvalidRequest: lists of one level differ in length, or values stand beside lists.
    """
    if not isinstance(value, list):
        return Nested((), [value])
    shape, elements = [len(value)], value
    while elements and isinstance(elements[0], list):
        size = len(elements[0])
        if set(map(type, elements)) != {list}:
            stray = next(each for each in elements if not isinstance(each, list))
            raise InvalidRequest(f"JSON Value: {shown(stray)} found at incorrect level: {len(shape) + 1} in the JSON DOM")
        if set(map(len, elements)) != {size}:
            other = next(len(each) for each in elements if len(each) != size)
            raise InvalidRequest(f"Encountered list at unexpected size: {other} at level: {len(shape)} expected size: {size}")
        shape.append(size)
        elements = list(chain.from_iterable(elements))
    if list in set(map(type, elements)):
        raise InvalidRequest(f"Encountered list at unexpected level: {len(shape)} expected < {len(shape)}")
    return Nested(tuple(shape), elements)


def flat_array(elements: list[Any], spec: TensorSpec) -> Array:
    """The flat array of `spec`'s element type that `elements` make.

    Raises:
        InvalidRequest: an element is of another type, out of range, or would lose precision. Unsupported: BF16.
    """
    datatype = spec.datatype
    if datatype is DataType.BYTES:
        return _strings(elements, spec)
    kinds = set(map(type, elements))
    if datatype is DataType.BOOL:
        _require(kinds <= {bool}, elements, (bool,), spec)
        return np.array(elements, dtype=np.bool_)
    if datatype is DataType.BF16:
        raise Unsupported(f"Conversion of JSON Value: {shown(elements[0] if elements else None)} to type: bfloat16")
    if datatype in _FLOATS:
        _require(kinds <= {int, float}, elements, (int, float), spec)
        return _floats(elements, kinds, spec)
    _require(kinds <= {int}, elements, (int,), spec)
    try:
        array: Array = np.array(elements, dtype=datatype.numpy)
    except OverflowError:
        bounds = np.iinfo(datatype.numpy)
        wrong = next(each for each in elements if not bounds.min <= each <= bounds.max)
        raise _type_error(wrong, spec) from None
    return array


def shown(value: Json) -> str:
    """`value` as JSON for an error, cut to what a client needs to find it."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    try:
        text = orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def kind_name(value: Json) -> str:
    """JSON's word for the type of `value`."""
    return str(value) if isinstance(value, bool) else _KINDS[type(value)]


def float_array(elements: Sequence[int | float], kinds: set[type], datatype: DataType) -> tuple[Array, int | float | None]:
    """The flat array of `elements`, which are of `kinds`, and the first of them that it does not hold; None: it holds all of them.

    A whole number is not held if it was rounded, another finite one if it became infinite. Fractions may be rounded.
    """
    wide = np.array(elements, dtype=np.float64)
    exact = _EXACT[datatype]
    if int in kinds and bool((np.abs(wide) > exact).any()):
        wrong = next((each for each in elements if isinstance(each, int) and abs(each) > exact), None)
        if wrong is not None:
            return wide, wrong
    with np.errstate(over="ignore"):
        array: Array = wide.astype(datatype.numpy, copy=False)
    lost = np.isinf(array) & np.isfinite(wide)
    return array, elements[int(np.argmax(lost))] if bool(lost.any()) else None


def _floats(elements: list[Any], kinds: set[type], spec: TensorSpec) -> Array:
    array, wrong = float_array(elements, kinds, spec.datatype)
    if wrong is not None:
        raise _lossy(wrong, spec)
    return array


def _strings(elements: list[Any], spec: TensorSpec) -> Array:
    kinds = set(map(type, elements))
    _require(kinds <= {str, dict}, elements, (str, dict), spec)
    if kinds <= {str}:
        values = [each.encode(errors="surrogatepass") for each in elements]
    else:
        values = [each.encode(errors="surrogatepass") if isinstance(each, str) else _bytes(each) for each in elements]
    return object_array(values, (len(values),))


def _bytes(value: Json) -> bytes:
    if not is_base64(value):
        raise InvalidRequest(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    return decoded(value)


def _require(is_right: bool, elements: list[Any], wanted: tuple[type, ...], spec: TensorSpec) -> None:
    if not is_right:
        raise _type_error(next(each for each in elements if type(each) not in wanted), spec)


def _type_error(value: Json, spec: TensorSpec) -> InvalidRequest:
    return InvalidRequest(f"JSON Value: {shown(value)} Type: {kind_name(value)} is not of expected type: {type_name(spec.datatype)}")


def _lossy(value: Json, spec: TensorSpec) -> InvalidRequest:
    return InvalidRequest(f"Cannot convert JSON value: {shown(value)} to {type_name(spec.datatype)} without loss of precision.")
