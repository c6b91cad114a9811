"""The proto3 JSON form of PredictRequest and PredictResponse.

Names in snake_case or camelCase, 64-bit integers as text, bytes as base64 of either alphabet, enums by name, defaults left out, unknown
fields ignored. The codec does not use protobuf reflection, so that it creates no objects for numbers except the parsed list.
"""

import base64
import binascii
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_plans import CONTENT, Elements, TensorPlan
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS, TensorFields
from stoker.server.codecs.tensors import Raw, array_pieces
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.protocols.adlik.request import BestClass, ModelQuery, PredictionResponse, PredictQuery, ResponseOutput

#: Characters of base64 decoded at once: a multiple of four, so that every piece is valid alone.
_STEP: Final = 1 << 20
_URL_SAFE: Final = str.maketrans("-_", "+/")
#: The greatest number of characters of a number.
_NUMBER_LENGTH: Final = 64


def member(given: Mapping[str, Json], name: str) -> Json:
    """The field `name` (in snake_case) of a JSON object, also under its camelCase name; None where it is missing or null."""
    value = given.get(name)
    return given.get(camel_case(name)) if value is None else value


@cache
def camel_case(name: str) -> str:
    """The camelCase name of a field. REQUIRES: no client chose `name`."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def as_object(value: Json, path: str) -> Mapping[str, Json]:
    """`value` as an object; empty if it is missing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must be an object")
    return value


def as_list(value: Json, path: str) -> list[Json]:
    """`value` as an array; empty if it is missing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} must be an array")
    return value


def as_text(value: Json, path: str) -> str:
    """`value` as text; empty if it is missing."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} must be a string")
    return value


def as_integer(value: Json, path: str, low: int, high: int) -> int:
    """`value`, a number or text, as an integer from `low` to `high`; 0 if it is missing."""
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
    """Decodes the base64 text `value`; padding is optional."""
    text = as_text(value, path).rstrip("=")
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    try:
        # In steps, because each holds the GIL.
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
        pass  # raised below
    raise InvalidRequest(f"{path} must hold integers of {np.dtype(dtype).name}")


def as_floats(values: list[Json], path: str, dtype: type[np.generic]) -> Array:
    """A list of numbers, each a number or text (`"NaN"`, `"-Infinity"`), as an array of `dtype`."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float}:
            # Too large numbers become infinite, as in other parsers of this format.
            with np.errstate(over="ignore"):
                return np.array(values, dtype=np.float64).astype(dtype)
        if kinds <= {int, float, str} and max(len(value) for value in values if isinstance(value, str)) <= _NUMBER_LENGTH:
            with np.errstate(over="ignore"):
                return np.array(list(map(float, values)), dtype=np.float64).astype(dtype)
    except (OverflowError, ValueError):
        pass  # raised below
    raise InvalidRequest(f"{path} must hold numbers")


def as_booleans(values: list[Json], path: str) -> Array:
    """A list of `true` and `false`."""
    if not set(map(type, values)) <= {bool}:
        raise InvalidRequest(f"{path} must hold true and false only")
    return np.array(values, dtype=np.bool_)


def printed_float(value: float) -> Any:
    """A number in proto3 JSON: NaN and infinities are text."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_UINT32: Final = (0, (1 << 32) - 1)
#: The fields of TensorProto that hold numbers, and their element types.
NUMBER_FIELDS: Final[Mapping[str, np.dtype[Any]]] = {
    "half_val": np.dtype(np.int32),
    "int_val": np.dtype(np.int32),
    "int64_val": np.dtype(np.int64),
    "uint32_val": np.dtype(np.uint32),
    "uint64_val": np.dtype(np.uint64),
    "float_val": np.dtype(np.float32),
    "double_val": np.dtype(np.float64),
    "bool_val": np.dtype(np.bool_),
}
#: Bytes that are encoded as base64 at once: a multiple of three, so that no piece but the last has padding.
_ENCODED_STEP_BYTES: Final = 3 << 18


def read_numbers(field: str, values: list[Json], path: str = "") -> Array:
    """The parsed list `values` of a number field as a flat array.

    Raises:
        InvalidRequest: a value does not fit the type of `field`; the text names `path`.
    """
    dtype = NUMBER_FIELDS[field]
    path = path or field
    if dtype.kind == "b":
        return as_booleans(values, path)
    return (as_floats if dtype.kind == "f" else as_integers)(values, path, dtype.type)


def read_request(given: Json, url: ModelQuery, limits: Limits) -> PredictQuery:
    """Reads the parsed body `given`; the model and version of the URL take precedence over those of the body. Safe in a thread.

    Raises:
        InvalidRequest: a field has an invalid form; the text names it.
    """
    body = as_object(given, "the request")
    inputs = as_object(member(body, "inputs"), "inputs")
    if len(inputs) > limits.tensor_count:
        raise InvalidRequest(f"request has {len(inputs)} inputs, more than the {limits.tensor_count} allowed")
    filters = as_object(member(body, "output_filter"), "output_filter")
    if len(filters) > limits.output_count:
        raise InvalidRequest(f"request asks for {len(filters)} outputs, more than the {limits.output_count} allowed")
    return PredictQuery(
        _model(body, url),
        as_integer(member(body, "batch_size"), "batch_size", *_UINT32),
        {name: _tensor(as_object(tensor, f"inputs.{name[:128]}"), f"inputs.{name[:128]}", limits) for name, tensor in inputs.items()},
        {name: _count(output, f"output_filter.{name[:128]}") for name, output in filters.items()},
    )


#: The fields of TensorProto with elements, by their names in snake_case and camelCase.
_ELEMENT_FIELDS: Final = {
    spelling: name for name in (CONTENT, *sorted(set(VALUE_FIELDS.values()))) for spelling in (name, camel_case(name))
}


def take_elements(given: Json) -> tuple[bytes, dict[str, Elements]] | None:
    """The structure of the parsed body `given`, and the elements of its inputs; None if a tensor does not have exactly one field of
    elements.
    """
    inputs = given.get("inputs") if type(given) is dict else None
    if type(inputs) is not dict:
        return None
    taken: dict[str, Elements] = {}
    bare: dict[str, dict[str, Any]] = {}
    for name, tensor in inputs.items():
        if type(tensor) is not dict:
            return None
        rest: dict[str, Any] = {}
        found: Elements | None = None
        for key, value in tensor.items():
            field = _ELEMENT_FIELDS.get(key)
            if field is None:
                rest[key] = value
            elif found is None:
                found = field, value
            else:
                return None
        if found is None:
            return None
        taken[name] = found
        bare[name] = rest
    return orjson.dumps({**given, "inputs": bare}), taken


def read_tensors(plans: dict[str, TensorPlan], check: SignatureCheck, taken: dict[str, Elements]) -> dict[str, Array] | None:
    """The arrays of a body's elements; None if the body must be decoded in full."""
    arrays: dict[str, Array] = {}
    for name, elements in taken.items():
        array = _planned(plans[name], check, elements)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _planned(plan: TensorPlan, check: SignatureCheck, elements: Elements) -> Array | None:
    field, given = elements
    if not given:
        return None
    try:
        if field == CONTENT:
            return plan.of_content(check, as_bytes(given, field))
        if field != plan.field or type(given) is not list:
            return None
        return plan.of_numbers(given) if plan.pack is not None else plan.of_values([as_bytes(value, field) for value in given])
    except InvalidRequest:
        return None


def print_response(response: PredictionResponse) -> bytes:
    """The JSON text of the PredictResponse. Safe in a thread."""
    printed: dict[str, Any] = {"model_spec": {"name": response.model.name, "version": str(response.model.version or 0)}}
    if response.outputs:
        printed["outputs"] = {output.name: _output(output) for output in response.outputs}
    return orjson.dumps(printed)


def _model(body: Mapping[str, Json], url: ModelQuery) -> ModelQuery:
    if url.version is not None:
        return url
    spec = as_object(member(body, "model_spec"), "model_spec")
    label = as_text(member(spec, "version_label"), "model_spec.version_label")
    version = member(spec, "version")
    if version is None:
        return ModelQuery(url.name, None, label)
    if label:
        raise InvalidRequest("model_spec has both version and version_label: give one of them")
    return ModelQuery(url.name, as_integer(version, "model_spec.version", *_INT64))


def _count(output: Json, path: str) -> int:
    wanted = as_object(member(as_object(output, path), "cls"), f"{path}.cls")
    return as_integer(member(wanted, "count"), f"{path}.cls.count", *_UINT32)


def _tensor(tensor: Mapping[str, Json], path: str, limits: Limits) -> TensorFields:
    # Long elements were decoded before the remainder was parsed, see `long_elements`.
    given = member(tensor, "tensor_content")
    content: Raw = given if isinstance(given, memoryview) else as_bytes(given, f"{path}.tensor_content")
    values: dict[str, Any] = {}
    if not len(content):
        for name in NUMBER_FIELDS:
            given = member(tensor, name)
            if isinstance(given, np.ndarray):
                values[name] = given
            elif given := as_list(given, f"{path}.{name}"):
                values[name] = read_numbers(name, given, f"{path}.{name}")
        if given := as_list(member(tensor, "string_val"), f"{path}.string_val"):
            values["string_val"] = [as_bytes(value, f"{path}.string_val") for value in given]
    return TensorFields(_datatype(member(tensor, "dtype"), f"{path}.dtype"), _shape(tensor, path, limits), content, values)


def _shape(tensor: Mapping[str, Json], path: str, limits: Limits) -> tuple[int, ...] | None:
    path = f"{path}.tensor_shape"
    dims = as_list(member(as_object(member(tensor, "tensor_shape"), path), "dim"), f"{path}.dim")
    if len(dims) > limits.dims_count:
        raise InvalidRequest(f"{path} has {len(dims)} dimensions, more than the {limits.dims_count} allowed")
    return tuple(as_integer(member(as_object(dim, f"{path}.dim"), "size"), f"{path}.dim.size", *_INT64) for dim in dims) or None


def _datatype(value: Json, path: str) -> int:
    if isinstance(value, str):
        if value not in types_pb2.DataType.DESCRIPTOR.values_by_name:
            raise InvalidRequest(f"{path} '{value[:64]}' is no element type; expected a name such as DT_FLOAT")
        return types_pb2.DataType.Value(value)
    return as_integer(value, path, 0, (1 << 31) - 1)


def _output(output: ResponseOutput) -> dict[str, Any]:
    tensor: dict[str, Any] = {
        "dtype": types_pb2.DataType.Name(NUMBERS[output.datatype]),
        "tensor_shape": {"dim": [{"size": str(size)} if size else {} for size in output.array.shape]},
    }
    if output.datatype.is_bytes:
        values = output.array.reshape(-1).tolist()
        tensor["string_val"] = [base64.b64encode(value.encode() if isinstance(value, str) else value).decode() for value in values]
    elif output.array.size:
        tensor["tensor_content"] = _base64(b"".join(array_pieces(output.array, output.datatype)))
    printed: dict[str, Any] = {"tensor": tensor}
    if output.classes:
        printed["batch_classes"] = [{"cls": [_class(best) for best in sample]} for sample in output.classes]
    return printed


def _base64(content: bytes) -> str:
    return "".join(
        [base64.b64encode(content[at : at + _ENCODED_STEP_BYTES]).decode() for at in range(0, len(content), _ENCODED_STEP_BYTES)]
    )


def _class(best: BestClass) -> dict[str, Any]:
    printed: dict[str, Any] = {}
    if best.class_index:
        printed["idx"] = best.class_index
    if best.score:
        printed["score"] = printed_float(best.score)
    if best.label:
        printed["label"] = best.label
    return printed
