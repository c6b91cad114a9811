"""Triton's generate extension: a flat JSON object to `InferRequest`, a response to a flat JSON object.

Keys that name inputs are tensors; other keys, and those inside `parameters`, are parameters. A value (a scalar or a flat list) gets the
shape of its input: the innermost variable dimension takes the remaining elements, other variable dimensions are 1.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.server.codecs.strict_json import RepeatedKey, parse_tensor_json
from stoker.server.codecs.tensors import BINARY_ONLY, array_from_json, json_from_array, unsendable
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch, read_parameters, with_request_id
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, ParameterValue, Via

NESTED = "parameters"
ID = "id"
EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
)


class Target(NamedTuple):
    """The addressed model and the time of receipt of a request."""

    model_name: str
    model_version: int | None
    received_ns: int


def decode(check: SignatureCheck, target: Target, body: bytes, limits: Limits) -> InferRequest:
    """Decodes `body`. REQUIRES: its memory cost is reserved. Safe in a thread.

    Raises:
        InvalidRequest: the body is no flat JSON object, or violates the model's signature.
    """
    try:
        given = parse_tensor_json(body, limits) if body else {}
    except RepeatedKey:
        _reject_repeated(check, body)
        raise
    if not isinstance(given, dict):
        raise InvalidRequest("the request must be a JSON object")
    request_id = given.pop(ID, "") if ID not in check.inputs else ""
    if not isinstance(request_id, str) or len(request_id) > limits.id_length:
        raise InvalidRequest(f"'{ID}' must be a string of at most {limits.id_length} characters")
    reading = _Reading(check, {}, {})
    try:
        reading.take(given, is_nested=False)
        if len(reading.parameters) > limits.parameter_count:
            raise InvalidRequest(f"request has {len(reading.parameters)} parameters, more than the {limits.parameter_count} allowed")
        rows = check.complete(reading.inputs)
    except SignatureMismatch as error:
        raise InvalidRequest(with_request_id(error.message, request_id)) from None
    for name in check.default_outputs:
        spec = check.signature.output(name)
        if spec is not None and spec.datatype in BINARY_ONLY:
            raise unsendable(spec.datatype, name)
    parameters = read_parameters(reading.parameters)
    return InferRequest(
        model_name=target.model_name,
        model_version=target.model_version,
        request_id=request_id,
        inputs=reading.inputs,
        rows=rows,
        output_names=check.default_outputs,
        signature=check.signature,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        sequence=parameters.sequence,
        parameters=parameters.custom,
        received_ns=target.received_ns,
        size_bytes=len(body),
        via=Via.GENERATE,
    )


def encode(response: InferResponse) -> bytes:
    """Encodes `response` as a JSON object: a single element as a scalar, several as a flat list. Safe in a thread.

    Raises:
        InvalidRequest: JSON cannot carry an output's values.
    """
    said: dict[str, Any] = {ID: response.request_id} if response.request_id else {}
    said["model_name"] = response.model_name
    said["model_version"] = str(response.model_version)
    if response.parameters:
        # As in Triton, beside the outputs, which come first where the names are equal.
        said.update({name: value for name, value in response.parameters.items() if name not in said})
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        values = json_from_array(array, spec.datatype, name)
        # A list of one element without its brackets, so that NaN is printed as in lists.
        said[name] = values if array.size != 1 else orjson.Fragment(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
    return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)


class _Reading(NamedTuple):
    """The inputs and parameters of one request that have been read so far."""

    check: SignatureCheck
    inputs: dict[str, Array]
    parameters: dict[str, ParameterValue]

    def take(self, given: Mapping[str, Any], *, is_nested: bool) -> None:
        for key, value in given.items():
            if key == NESTED and not is_nested:
                if NESTED in self.check.inputs:
                    raise InvalidRequest(f"Keyword '{NESTED}' for nested schema also given as input tensor name")
                if not isinstance(value, dict):
                    raise InvalidRequest(f"Expected JSON object for keyword: '{NESTED}'")
                self.take(value, is_nested=True)
            elif key in self.check.inputs:
                self.inputs[key] = self._tensor(self.check.input(key, self.inputs), value)
            elif isinstance(value, bool | int | float | str):
                self.parameters[key] = value
            else:
                raise InvalidRequest(f"parameter '{key[:128]}' has invalid type. It should be either 'int', 'bool', 'string' or 'double'.")

    def _tensor(self, spec: TensorSpec, value: Any) -> Array:
        flat = value if isinstance(value, list) else [value]
        lead = (VARIABLE,) if self.check.signature.is_batched else ()
        shape = _shape((*lead, *spec.dims), len(flat), spec.name)
        count = self.check.count_elements(spec, spec.datatype.value, shape)
        return array_from_json(self.check, spec, shape, count, flat)


def _shape(dims: tuple[int, ...], count: int, name: str) -> tuple[int, ...]:
    """Replaces the variable sizes of `dims` so that the shape has `count` elements."""
    rest, odd = divmod(count, int(np.prod([dim for dim in dims if dim != VARIABLE], dtype=object)))
    shape = list(dims)
    for axis in reversed(range(len(shape))):
        if shape[axis] == VARIABLE:
            shape[axis], rest = rest, 1
    if odd or rest != 1:
        raise InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape: {count} elements for {list(dims)}")
    return tuple(shape)


def _reject_repeated(check: SignatureCheck, body: bytes) -> None:
    """Rejects an input that is given twice, with Triton's text. REQUIRES: `body` was parsed."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen and key in check.inputs:
                raise InvalidRequest(f"input '{key}' already exists in request")
            seen.add(key)

    json.loads(body, object_pairs_hook=look)
