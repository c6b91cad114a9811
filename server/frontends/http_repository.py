"""Bodies of load and unload requests to the messages that the handlers take."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from backends.api.errors import InvalidRequest
from server.pb import grpc_service_pb2 as pb


def load_request(name: str, repository: str, given: Mapping[str, Any]) -> pb.RepositoryModelLoadRequest:
    """The message for a load; `file:` parameters hold base64.

    Raises:
        InvalidRequest: a parameter has another form.
    """
    message = pb.RepositoryModelLoadRequest(model_name=name, repository_name=repository)
    for key, value in _parameters(given).items():
        if not isinstance(value, str):
            raise InvalidRequest(f"load parameter '{key[:128]}' must be a string")
        if key.startswith("file:"):
            try:
                message.parameters[key].bytes_param = base64.b64decode(value, validate=True)
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


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be an object")
    return parameters
