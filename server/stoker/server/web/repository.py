"""Bodies of load and unload requests to the messages that the handlers take."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.strict_json import parse_bounded
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb

#: Characters of base64 that are decoded at once: a multiple of four, so that every piece stands for itself.
_STEP = 1 << 20


def parse_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object that `body` holds; empty where there is no body.

    Raises:
        InvalidRequest: it holds something else. TooLarge: as `parse_bounded`.
    """
    given = parse_bounded(body, limits) if body else {}
    if not isinstance(given, dict):
        raise InvalidRequest("the request must be a JSON object")
    return given


def load_request(name: str, repository: str, body: bytes, limits: Limits) -> pb.RepositoryModelLoadRequest:
    """The message for a load that `body` asks for; `file:` parameters hold base64. Safe in a thread.

    Raises:
        InvalidRequest: it is no JSON object, or a parameter has another form.
    """
    message = pb.RepositoryModelLoadRequest(model_name=name, repository_name=repository)
    for key, value in _parameters(parse_object(body, limits)).items():
        if not isinstance(value, str):
            raise InvalidRequest(f"load parameter '{key[:128]}' must be a string")
        if key.startswith("file:"):
            try:
                message.parameters[key].bytes_param = _decoded(value)
            except (binascii.Error, ValueError):
                raise InvalidRequest(f"load parameter '{key[:128]}' must be base64") from None
        else:
            message.parameters[key].string_param = value
    return message


def unload_request(name: str, repository: str, given: Mapping[str, Any]) -> pb.RepositoryModelUnloadRequest:
    """The message for an unload.

    Raises:
        InvalidRequest: a parameter has another form.
    """
    message = pb.RepositoryModelUnloadRequest(model_name=name, repository_name=repository)
    for key, value in _parameters(given).items():
        if not isinstance(value, bool):
            raise InvalidRequest(f"unload parameter '{key[:128]}' must be a boolean")
        message.parameters[key].bool_param = value
    return message


def _decoded(text: str) -> bytes:
    # In steps, because each holds the interpreter; only the last may be padded.
    if text.find("=", 0, (len(text) - 1) // _STEP * _STEP) >= 0:
        raise ValueError("padding before the end")
    return b"".join([base64.b64decode(text[at : at + _STEP], validate=True) for at in range(0, len(text), _STEP)])


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be an object")
    return parameters
