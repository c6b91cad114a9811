"""The body of `:predict`: row form (`instances`, a list of samples) or column form (`inputs`, tensors as they are)."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.request import Array
from stoker.server.protocols.tfs.json_values import Nested, flat_array, flatten, is_base64, kind_name, shown

INSTANCES, INPUTS, SIGNATURE = "instances", "inputs", "signature_name"


class Form(Enum):
    """How a body holds its tensors, and so how its answer does."""

    ROW = auto()
    COLUMN = auto()


class PredictBody(NamedTuple):
    """The tensors of a body by input name, not yet judged against the model."""

    form: Form
    tensors: Mapping[str, Nested]


def as_object(given: Json) -> dict[str, Any]:
    """The body as an object.

    Raises:
        InvalidRequest: it is something else.
    """
    if not isinstance(given, dict):
        raise InvalidRequest(f"JSON Value: {shown(given)} Is not object")
    return given


def signature_name(body: Mapping[str, Json]) -> str:
    """The signature that the body asks for; empty: none.

    Raises:
        InvalidRequest: it is no string.
    """
    name = body.get(SIGNATURE, "")
    if not isinstance(name, str):
        raise InvalidRequest(f"JSON Value: {shown(body)} not formatted correctly. 'signature_name' key must be a string value.")
    return name


def read_predict(body: Mapping[str, Json], inputs: Mapping[str, TensorSpec]) -> PredictBody:
    """What `body` holds for a model with `inputs`. Safe in a thread.

    Raises:
        InvalidRequest: in TensorFlow Serving's words.
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
        InvalidRequest: shapes or elements are not those of the model.
    """
    found: dict[str, Array] = {}
    for name, nested in body.tensors.items():
        spec = check.inputs[name]
        # Elements first: that a value is of a wrong type says more than what its nesting makes of the shape.
        flat = flat_array(nested.elements, spec)
        check.count_elements(spec, spec.datatype.value, nested.shape)
        found[name] = flat.reshape(nested.shape)
    return found


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
    """The samples of one input below each other; every sample must have the shape of the first."""
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
    # What the model has not is ignored, as TensorFlow Serving does.
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
