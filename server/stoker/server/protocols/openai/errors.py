"""OpenAI's error object and status codes."""

from typing import Final

import orjson

from stoker.backends.api.errors import ErrorCode, InvalidRequest, NotFound, Overloaded, QueueTimeout, ServingError, TooLarge, Unsupported
from stoker.server.net.http1.response import HeaderList
from stoker.server.rpc.status import INVALID_ARGUMENT, UNAVAILABLE, Status, retry_after_seconds, status_of

#: OpenAI's statuses where they differ from the taxonomy, by error class.
_OVERRIDES: Final[dict[type, Status]] = {
    QueueTimeout: Status(503, UNAVAILABLE),
    TooLarge: Status(400, INVALID_ARGUMENT),
    Unsupported: Status(400, INVALID_ARGUMENT),
}
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "invalid_request_error", 429: "rate_limit_error"}
_CODES: Final = {
    ErrorCode.UNAUTHENTICATED: "invalid_api_key",
    ErrorCode.NOT_FOUND: "model_not_found",
    ErrorCode.OVERLOADED: "rate_limit_exceeded",
    ErrorCode.UNAVAILABLE: "model_unavailable",
    ErrorCode.DEADLINE: "timeout",
}


class FieldError(InvalidRequest):
    """A field of the request's body is wrong.

    Attributes:
        param: The field.
        error_code: OpenAI's code, for programs.
    """

    def __init__(self, param: str, message: str, error_code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.error_code = error_code


class ModelNotFound(NotFound):
    """The field `model` names no model that serves the endpoint."""


class UnknownPath(NotFound):
    """OpenAI has the path, this server does not serve it."""


def status(error: ServingError) -> int:
    """The HTTP status of `error`."""
    return status_of(error, _OVERRIDES).http


def error_object(error: ServingError) -> dict[str, object]:
    """`error` as OpenAI's clients read it."""
    number = status(error)
    kind = _TYPES.get(number, "server_error" if number >= 500 else "invalid_request_error")
    param: str | None = None
    code: str | None = _CODES.get(error.code)
    if isinstance(error, FieldError):
        param, code = error.param, error.error_code
    elif isinstance(error, UnknownPath):
        code = "unknown_url"
    elif isinstance(error, NotFound):
        param = "model"
    # A text may quote what a client sent, lone surrogates included; those have no UTF-8 form.
    message = error.message.encode(errors="backslashreplace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: ServingError) -> tuple[int, bytes, HeaderList]:
    """Status, body and headers of the response for `error`."""
    headers: HeaderList = [(b"content-type", b"application/json")]
    after = retry_after_seconds(error)
    if after is not None:
        headers.append((b"retry-after", after.encode()))
    if isinstance(error, Overloaded):
        # The clients repeat the request after this delay, in milliseconds.
        headers.append((b"retry-after-ms", str(round(1000 * (error.retry_after_s or 1.0))).encode()))
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    return status(error), orjson.dumps(error_object(error)), headers
