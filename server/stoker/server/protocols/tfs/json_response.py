"""Answers of TensorFlow Serving's REST interface: row or column form, `NaN` and `Infinity` as bare tokens, bytes as `{"b64": ...}`."""

import base64
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.core.request import Array, InferResponse
from stoker.server.protocols.tfs.json_request import Form

#: A name with this end says that strings are bytes.
_BYTES_SUFFIX: Final = "_bytes"


def print_predictions(response: InferResponse, form: Form) -> bytes:
    """The body that answers `:predict`. Safe in a thread.

    Raises:
        InvalidRequest: row form was asked for, and the outputs have no rows, or different numbers of them.
    """
    outputs = {name: _printable(response, name, array) for name, array in response.outputs.items()}
    if form is Form.COLUMN:
        if len(outputs) == 1:
            return b'{"outputs":' + _printed(*outputs.values()) + b"}"
        return b'{"outputs":{' + b",".join([orjson.dumps(name) + b":" + _printed(value) for name, value in outputs.items()]) + b"}}"
    rows: int | None = None
    for name, value in response.outputs.items():
        if not value.ndim:
            raise InvalidRequest(f"Tensor name: {name} has no shape information ")
        if rows not in (None, value.shape[0]):
            raise InvalidRequest(f"Tensor name: {name} has inconsistent batch size: {value.shape[0]} expecting: {rows}")
        rows = value.shape[0]
    if len(outputs) == 1:
        return b'{"predictions":' + _printed(*outputs.values()) + b"}"
    columns = [[orjson.dumps(name) + b":" + _printed(row) for row in value] for name, value in outputs.items()]
    return b'{"predictions":[' + b",".join([b"{" + b",".join(row) + b"}" for row in zip(*columns, strict=True)]) + b"]}"


def print_classes(classified: Sequence[Sequence[tuple[str, float]]]) -> bytes:
    """The body that answers `:classify`: for each sample, a list of [label, score]."""
    samples = [
        b"[" + b",".join([b"[" + orjson.dumps(label) + b"," + _printed(np.float32(score)) + b"]" for label, score in sample]) + b"]"
        for sample in classified
    ]
    return b'{"results":[' + b",".join(samples) + b"]}"


def print_numbers(numbers: Sequence[float]) -> bytes:
    """The body that answers `:regress`: a number for each sample."""
    return b'{"results":' + _printed(np.array(numbers, dtype=np.float32)) + b"}"


def _printable(response: InferResponse, name: str, array: Array) -> Any:
    """`array` as what `_printed` takes: an array of numbers, or nested lists."""
    spec = response.output_spec(name)
    match spec.datatype:
        case DataType.BYTES:
            return _strings(array, is_bytes=name.endswith(_BYTES_SUFFIX))
        case DataType.FP16:
            return np.asarray(array, dtype=np.float32, order="C")
        case DataType.BF16:
            # The raw bits are the upper half of a float32's.
            return np.asarray(np.left_shift(array, 16, dtype=np.uint32), order="C").view(np.float32)
        case _:
            return np.asarray(array, order="C")


def _strings(array: Array, *, is_bytes: bool) -> Any:
    texts = np.empty(array.size, dtype=np.object_)
    texts[:] = [_text(value, is_bytes=is_bytes) for value in array.reshape(-1).tolist()]
    return texts.reshape(array.shape).tolist()


def _text(value: bytes | str, *, is_bytes: bool) -> Any:
    raw = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    if not is_bytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass  # JSON has no other form for what is not text, whatever the output is called
    return {"b64": base64.b64encode(raw).decode()}


def _printed(value: Any) -> bytes:
    """`value` as JSON; orjson prints null for every number that is not finite, and each of them becomes its token."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if not isinstance(value, (np.ndarray, np.floating)) or value.dtype.kind != "f" or bool(np.isfinite(value).all()):
        return text
    numbers = np.asarray(value).reshape(-1)
    pieces: list[bytes] = []
    for part, number in zip(text.split(b"null"), [*numbers[~np.isfinite(numbers)].tolist(), None], strict=True):
        pieces += (part, b"" if number is None else _token(number))
    return b"".join(pieces)


def _token(number: float) -> bytes:
    return b"NaN" if number != number else b"Infinity" if number > 0 else b"-Infinity"
