"""`TritonError` and `TritonModelException` of `triton_python_backend_utils`, and their codes in the server's taxonomy."""

from typing import Final

from stoker.backends.api.batch import as_failure
from stoker.backends.api.errors import (
    AlreadyExists,
    BackendFailed,
    Cancelled,
    ErrorCode,
    InvalidRequest,
    NotFound,
    ServingError,
    Unavailable,
    Unsupported,
)


class TritonError:
    """The error of a response.

    The codes are Triton's: attributes of the class, and values of `code()`.
    """

    UNKNOWN: Final = 0
    INTERNAL: Final = 1
    NOT_FOUND: Final = 2
    INVALID_ARG: Final = 3
    UNAVAILABLE: Final = 4
    UNSUPPORTED: Final = 5
    ALREADY_EXISTS: Final = 6
    CANCELLED: Final = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        """Makes an error with a text for the client and one of the codes of this class."""
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> int:
        """One of the codes of this class."""
        return self._code

    def __str__(self) -> str:
        return self._message


class TritonModelException(Exception):
    """An error that a model raises; the client gets its text."""

    def __init__(self, msg: object = "") -> None:
        super().__init__(msg)
        self._message = str(msg)

    def message(self) -> str:
        """The text."""
        return self._message

    def __str__(self) -> str:
        return self._message


_BY_CODE: dict[int, type[ServingError]] = {
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: InvalidRequest,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: AlreadyExists,
    TritonError.CANCELLED: Cancelled,
}
_CODES: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: TritonError.INVALID_ARG,
    ErrorCode.TOO_LARGE: TritonError.INVALID_ARG,
    ErrorCode.NOT_FOUND: TritonError.NOT_FOUND,
    ErrorCode.CONFLICT: TritonError.ALREADY_EXISTS,
    ErrorCode.OVERLOADED: TritonError.UNAVAILABLE,
    ErrorCode.UNAVAILABLE: TritonError.UNAVAILABLE,
    ErrorCode.DEADLINE: TritonError.UNAVAILABLE,
    ErrorCode.CANCELLED: TritonError.CANCELLED,
    ErrorCode.UNSUPPORTED: TritonError.UNSUPPORTED,
}


def serving_error(error: object) -> ServingError:
    """The server's error for the `error` of a model's response: a `TritonError`, or any object with a text."""
    if isinstance(error, TritonError):
        failure = _BY_CODE.get(error.code(), BackendFailed)(error.message())
    else:
        failure = BackendFailed(str(error))
    failure.is_of_model = True
    return failure


def triton_error(error: ServingError) -> TritonError:
    """The error of a response to a model that called another model."""
    return TritonError(error.message, _CODES.get(error.code, TritonError.INTERNAL))


def failure_of(error: BaseException) -> ServingError:
    """The failure that a client gets for an exception that a model raised: its text, with the exception as the cause for the log.

    A `TritonModelException` is its text alone. A `ServingError`, such as `stoker.models.BadRequest`, stays what it is.
    """
    if isinstance(error, ServingError):
        return error
    if isinstance(error, TritonModelException):
        failure = BackendFailed(error.message() or "TritonModelException")
        failure.__cause__ = error
    else:
        failure = as_failure(error)
    failure.is_of_model = True
    return failure
