"""JSON of TensorFlow Serving's REST interface: values, the forms of a request body, and the response.

A `:predict` body has the row form (`instances`, a list of samples) or the column form (`inputs`, whole tensors). Lists become arrays
without a Python loop over elements: nesting is removed level by level, and the set of element types, which the interpreter builds at C
speed, shows whether every element has the tensor's type.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import Json, parse_tensor_json
from stoker.server.codecs.tensor_plans import TensorPlan, flat_elements, nested_dims
from stoker.server.codecs.tensor_proto import type_name
from stoker.server.codecs.tensors import object_array
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferResponse

_B64: Final = "b64"
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
#: By float type, the bound up to which all whole numbers are exact.
_EXACT: Final = {DataType.FP16: (1 << 11) - 1, DataType.FP32: (1 << 24) - 1, DataType.FP64: (1 << 53) - 1}
_KINDS: Final = {type(None): "Null", dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
_FLOAT_ONLY: Final = frozenset({float})
_NUMBERS: Final = frozenset({int, float})
_SHOWN: Final = 128


class Nested(NamedTuple):
    """A value of any nesting, flattened: its shape, and its elements in row-major order."""

    shape: tuple[int, ...]
    elements: list[Any]


def parse(text: bytes, limits: Limits) -> Json:
    """Parses `text`, which `memory_cost` has accepted; `NaN`, `Infinity` and `-Infinity` are numbers, as in TensorFlow Serving.

    Raises:
        InvalidRequest: the text is not JSON, or is nested too deeply.
    """
    try:
        return parse_tensor_json(text, limits)
    except InvalidRequest as error:
        raise InvalidRequest(f"JSON Parse error: {error.message}") from None


def is_base64(value: Json) -> bool:
    """Whether `value` is `{"b64": "..."}`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def decoded(value: Mapping[str, Any]) -> bytes:
    """Decodes the bytes of `{"b64": "..."}`.

    Raises:
        InvalidRequest: the text is not base64.
    """
    try:
        text = value[_B64].rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if "-" in text or "_" in text else None, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("Unable to base64 decode") from None


def flatten(value: Json) -> Nested:
    """Flattens `value`.

    Raises:
        InvalidRequest: lists of one level differ in length, or a level mixes lists and values.
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
    """Converts `elements` to a flat array of `spec`'s element type.

    Raises:
        InvalidRequest: an element has a wrong type, is out of range, or would lose precision. Unsupported: BF16.
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
    """`value` as JSON for an error text, truncated."""
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
    """The flat array of `elements`, whose types are `kinds`, and the first element that it cannot represent; None: it represents all.

    A whole number must not be rounded, and a finite number must not become infinite. Fractions may be rounded.
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


INSTANCES, INPUTS, SIGNATURE = "instances", "inputs", "signature_name"


class Form(Enum):
    """The form of tensors in a body and in its response."""

    ROW = auto()
    COLUMN = auto()


class PredictBody(NamedTuple):
    """The tensors of a body by input name, not yet validated."""

    form: Form
    tensors: Mapping[str, Nested]


def as_object(given: Json) -> dict[str, Any]:
    """The body as an object.

    Raises:
        InvalidRequest: the body is no object.
    """
    if not isinstance(given, dict):
        raise InvalidRequest(f"JSON Value: {shown(given)} Is not object")
    return given


def signature_name(body: Mapping[str, Json]) -> str:
    """The signature name in the body; empty: none.

    Raises:
        InvalidRequest: the name is no string.
    """
    name = body.get(SIGNATURE, "")
    if not isinstance(name, str):
        raise InvalidRequest(f"JSON Value: {shown(body)} not formatted correctly. 'signature_name' key must be a string value.")
    return name


def read_predict(body: Mapping[str, Json], inputs: Mapping[str, TensorSpec]) -> PredictBody:
    """Reads the tensors of `body` for a model with `inputs`. Safe in a thread.

    Raises:
        InvalidRequest: the body is malformed; the text is TensorFlow Serving's.
    """
    if INSTANCES in body and INPUTS in body:
        raise InvalidRequest(
            f"JSON Value: {shown(body)} Not formatted correctly expecting only one of '{INPUTS}' or '{INSTANCES}' keys to exist "
        )
    if INSTANCES in body:
        given = body[INSTANCES]
        if not isinstance(given, list):
            raise InvalidRequest(f"JSON Value: {shown(body)} Excepting '{INSTANCES}' to be an list/array")
        if not given:
            raise InvalidRequest(f"JSON Value: {shown(body)} No values in '{INSTANCES}' array")
        return PredictBody(Form.ROW, _rows(given, inputs))
    if INPUTS in body:
        return PredictBody(Form.COLUMN, _columns(body[INPUTS], inputs))
    raise InvalidRequest(f"Missing '{INPUTS}' or '{INSTANCES}' key")


def arrays(body: PredictBody, check: SignatureCheck) -> dict[str, Array]:
    """The arrays of `body`. Safe in a thread.

    Raises:
        InvalidRequest: shapes or elements do not match the model.
    """
    found: dict[str, Array] = {}
    for name, nested in body.tensors.items():
        spec = check.inputs[name]
        # Elements first: an error about a wrong type is more helpful than one about the resulting shape.
        flat = flat_array(nested.elements, spec)
        check.count_elements(spec, spec.datatype.value, nested.shape)
        found[name] = flat.reshape(nested.shape)
    return found


class Layout:
    """The structure of a body, and its values by input. Bodies with equal forms and dims share a plan.

    Attributes:
        form: How the body holds its tensors.
        dims: The dims of each of the model's inputs, from the first list of each level; None: the input is absent.
        values: By input.
    """

    __slots__ = ("dims", "form", "values")

    def __init__(self, form: Form, dims: tuple[tuple[int, ...] | None, ...], values: Mapping[str, Json]) -> None:
        self.form = form
        self.dims = dims
        self.values = values


def layout_of(body: Mapping[str, Json], inputs: Mapping[str, TensorSpec]) -> Layout | None:
    """The structure of `body` for a model with `inputs`; None: it is unusual or invalid."""
    form, given = Form.COLUMN, body.get(INPUTS)
    if INSTANCES in body:
        form, given = Form.ROW, body[INSTANCES]
        if INPUTS in body or type(given) is not list or not given:
            return None
        first = given[0]
        if type(first) is dict:
            names = first.keys()
            if not names <= inputs.keys() or (len(given) > 1 and any(type(row) is not dict or row.keys() != names for row in given)):
                return None
            given = {name: [row[name] for row in given] for name in first}
    if type(given) is not dict:
        if len(inputs) != 1 or (INPUTS not in body and form is Form.COLUMN):
            return None
        given = dict.fromkeys(inputs, given)
    return Layout(form, tuple([nested_dims(given[name]) if name in given else None for name in inputs]), given)


def planned_arrays(plans: dict[str, TensorPlan], values: Mapping[str, Json]) -> dict[str, Array] | None:
    """The arrays of `values`, whose dims are those of `plans`; None if one needs the full validation."""
    arrays: dict[str, Array] = {}
    for name, plan in plans.items():
        array = _planned_array(plan, values[name])
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _planned_array(plan: TensorPlan, value: Json) -> Array | None:
    elements = flat_elements(value, plan.shape)
    if elements is None:
        return None
    kinds = set(map(type, elements))
    if not plan.is_float:
        return plan.of_values(elements) if kinds <= plan.kinds and plan.pack is not None else None
    datatype = plan.spec.datatype
    if kinds == _FLOAT_ONLY and datatype is not DataType.FP16:
        return plan.of_values(elements)
    if not kinds <= _NUMBERS:
        return None
    array, wrong = float_array(elements, kinds, datatype)
    return array.reshape(plan.shape) if wrong is None else None


def _rows(instances: list[Json], inputs: Mapping[str, TensorSpec]) -> dict[str, Nested]:
    if not _is_named(instances[0]):
        if len(inputs) > 1:
            raise InvalidRequest(
                "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"
            )
        if dict in set(map(type, instances)):
            for index, each in enumerate(instances):
                if _is_named(each):
                    raise InvalidRequest(f"Expecting value/list but got object at item {index} of input list")
        return {name: _stacked(instances, "") for name in inputs}
    names: set[str] = set()
    for index, each in enumerate(instances):
        if not _is_named(each):
            kind = "list" if isinstance(each, list) else kind_name(each)
            raise InvalidRequest(f"Expecting object but got {kind} at item {index} of input list")
        if not index:
            names = set(each)
            _check_names(each, inputs)
        elif each.keys() != names:
            raise _wrong_keys(index, each, inputs)
    return {name: _stacked([each[name] for each in instances], f" key: {name}") for name in inputs if name in names}


def _check_names(first: Mapping[str, Json], inputs: Mapping[str, TensorSpec]) -> None:
    for name in first:
        if name not in inputs:
            raise _failed(0, f" key: {name[:128]}", f"JSON object: does not have named input: {name[:128]}")
    if any(not spec.optional and name not in first for name, spec in inputs.items()):
        raise _wrong_keys(0, first, inputs)


def _stacked(values: list[Json], key: str) -> Nested:
    """Stacks the samples of one input; every sample must have the shape of the first."""
    if isinstance(values[0], list):
        size = len(values[0])
        for index, each in enumerate(values):
            if not isinstance(each, list):
                raise _failed(index, key, f"Expecting shape [{size},...] but got: {kind_name(each)}")
            if len(each) != size:
                raise _failed(index, key, f"Expecting tensor size: {size} but got: {len(each)}")
    try:
        return flatten(values)
    except InvalidRequest as error:
        raise InvalidRequest(f"Failed to process{key} of 'instances' list. Error: {error.message}") from None


def _columns(given: Json, inputs: Mapping[str, TensorSpec]) -> dict[str, Nested]:
    if not _is_named(given):
        if len(inputs) > 1:
            raise InvalidRequest(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map"
            )
        return {name: flatten(given) for name in inputs}
    for name, spec in inputs.items():
        if name not in given and not spec.optional:
            raise InvalidRequest(f"Missing named input: {name} in 'inputs' object.")
    # Unknown inputs are ignored, as in TensorFlow Serving.
    return {name: flatten(given[name]) for name in inputs if name in given}


def _is_named(value: Json) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _wrong_keys(index: int, given: Mapping[str, Json], inputs: Mapping[str, TensorSpec]) -> InvalidRequest:
    return InvalidRequest(
        f"Failed to process element: {index} of 'instances' list. JSON object: {shown(given)} keys must be equal to: "
        + ",".join(sorted(inputs))
    )


def _failed(index: int, key: str, error: str) -> InvalidRequest:
    return InvalidRequest(f"Failed to process element: {index}{key} of 'instances' list. Error: {error}")


#: Outputs whose names have this suffix hold binary strings.
_BYTES_SUFFIX: Final = "_bytes"


def print_predictions(response: InferResponse, form: Form) -> bytes:
    """The response body of `:predict`. Safe in a thread.

    Raises:
        InvalidRequest: the request has the row form, and the outputs have no rows, or different numbers of rows.
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
    """The response body of `:classify`: for each sample, a list of [label, score]."""
    samples = [
        b"[" + b",".join([b"[" + orjson.dumps(label) + b"," + _printed(np.float32(score)) + b"]" for label, score in sample]) + b"]"
        for sample in classified
    ]
    return b'{"results":[' + b",".join(samples) + b"]}"


def print_numbers(numbers: Sequence[float]) -> bytes:
    """The response body of `:regress`: a number for each sample."""
    return b'{"results":' + _printed(np.array(numbers, dtype=np.float32)) + b"}"


def _printable(response: InferResponse, name: str, array: Array) -> Any:
    """Converts `array` for `_printed`: to an array of numbers, or nested lists."""
    spec = response.output_spec(name)
    match spec.datatype:
        case DataType.BYTES:
            return _text_values(array, is_bytes=name.endswith(_BYTES_SUFFIX))
        case DataType.FP16:
            return np.asarray(array, dtype=np.float32, order="C")
        case DataType.BF16:
            # The raw bits are the upper half of a float32's.
            return np.asarray(np.left_shift(array, 16, dtype=np.uint32), order="C").view(np.float32)
        case _:
            return np.asarray(array, order="C")


def _text_values(array: Array, *, is_bytes: bool) -> Any:
    texts = np.empty(array.size, dtype=np.object_)
    texts[:] = [_text(value, is_bytes=is_bytes) for value in array.reshape(-1).tolist()]
    return texts.reshape(array.shape).tolist()


def _text(value: bytes | str, *, is_bytes: bool) -> Any:
    raw = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    if not is_bytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass  # base64 is the only form of bytes that are not UTF-8, whatever the output's name
    return {"b64": base64.b64encode(raw).decode()}


def _printed(value: Any) -> bytes:
    """`value` as JSON; orjson prints null for numbers that are not finite, and each null is replaced by the number's token."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    # Strings may hold the word; numbers print it only if they are not finite.
    if text.find(b"null") < 0 or not isinstance(value, (np.ndarray, np.floating)) or value.dtype.kind != "f":
        return text
    numbers = np.asarray(value).reshape(-1)
    pieces: list[bytes] = []
    for part, number in zip(text.split(b"null"), [*numbers[~np.isfinite(numbers)].tolist(), None], strict=True):
        pieces += (part, b"" if number is None else _token(number))
    return b"".join(pieces)


def _token(number: float) -> bytes:
    return b"NaN" if number != number else b"Infinity" if number > 0 else b"-Infinity"
