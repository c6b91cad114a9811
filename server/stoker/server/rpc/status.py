"""gRPC status codes, the HTTP and gRPC status of each error of the taxonomy, and `google.rpc.Status` details."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from stoker.backends.api.errors import (
    AlreadyExists,
    Conflict,
    ErrorCode,
    Overloaded,
    QueueTimeout,
    RestrictedCall,
    ServingError,
    UnknownModel,
)
from stoker.backends.api.wire import encoded_varint

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16


#: Name of the trailer.
STATUS_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_DOMAIN = "stoker"
_NS_PER_S = 1_000_000_000


def status_details(code: int, text: str, reason: str, retry_after_s: float) -> bytes:
    """A serialised `google.rpc.Status` with a `RetryInfo` and an `ErrorInfo`.

    Args:
        code: The gRPC status code of the call; clients reject details with a different code or text.
        text: The text of the call's status.
        reason: The error's name in the server's taxonomy, in upper case.
        retry_after_s: The delay before a retry, in seconds.
    """
    delay_ns = round(retry_after_s * _NS_PER_S)
    duration = _number(1, delay_ns // _NS_PER_S) + _number(2, delay_ns % _NS_PER_S)
    retry_info = _nested(1, duration)
    error_info = _nested(1, reason.encode()) + _nested(2, _DOMAIN.encode())
    return b"".join(
        (
            _number(1, code),
            _nested(2, text.encode(errors="replace")),
            _nested(3, _any(_RETRY_INFO, retry_info)),
            _nested(3, _any(_ERROR_INFO, error_info)),
        )
    )


def _any(type_url: str, value: bytes) -> bytes:
    return _nested(1, type_url.encode()) + _nested(2, value)


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + encoded_varint(value) if value else b""


def _nested(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + encoded_varint(len(value)) + value


class Status(NamedTuple):
    """HTTP status and gRPC status code of one kind of failure."""

    http: int
    grpc: int


STATUS: Final[dict[ErrorCode, Status]] = {
    ErrorCode.INVALID_REQUEST: Status(400, INVALID_ARGUMENT),
    ErrorCode.TOO_LARGE: Status(413, RESOURCE_EXHAUSTED),
    ErrorCode.UNAUTHENTICATED: Status(401, UNAUTHENTICATED),
    ErrorCode.FORBIDDEN: Status(403, PERMISSION_DENIED),
    ErrorCode.NOT_FOUND: Status(404, NOT_FOUND),
    ErrorCode.CONFLICT: Status(409, FAILED_PRECONDITION),
    ErrorCode.OVERLOADED: Status(429, UNAVAILABLE),
    ErrorCode.UNAVAILABLE: Status(503, UNAVAILABLE),
    ErrorCode.DEADLINE: Status(504, DEADLINE_EXCEEDED),
    ErrorCode.CANCELLED: Status(499, CANCELLED),
    ErrorCode.UNSUPPORTED: Status(501, UNIMPLEMENTED),
    ErrorCode.BACKEND_FAILED: Status(500, INTERNAL),
    ErrorCode.INTERNAL: Status(500, INTERNAL),
}


def status_of(error: ServingError, overrides: Mapping[type, Status]) -> Status:
    """The status of `error`: the one that `overrides` has for its class, else that of the taxonomy."""
    for kind in type(error).__mro__:
        if kind in overrides:
            return overrides[kind]
    return STATUS[error.code]


#: Triton's statuses where they differ from the taxonomy, by error class.
KSERVE_OVERRIDES: Final[dict[type, Status]] = {
    UnknownModel: Status(400, NOT_FOUND),
    AlreadyExists: Status(400, ALREADY_EXISTS),
    RestrictedCall: Status(403, UNAVAILABLE),
    Overloaded: Status(503, UNAVAILABLE),
    QueueTimeout: Status(503, UNAVAILABLE),
}


def kserve_status(error: ServingError) -> Status:
    """The status of `error` on the KServe v2 protocol."""
    return status_of(error, KSERVE_OVERRIDES)


#: Adlik's statuses where they differ: a full queue is UNAVAILABLE, a timeout in the queue RESOURCE_EXHAUSTED.
ADLIK_OVERRIDES: Final[dict[type, Status]] = {
    Overloaded: Status(503, UNAVAILABLE),
    QueueTimeout: Status(429, RESOURCE_EXHAUSTED),
    Conflict: Status(409, ABORTED),
}


def adlik_status(error: ServingError) -> Status:
    """The status of `error` on Adlik's protocol."""
    return status_of(error, ADLIK_OVERRIDES)


def retry_after_seconds(error: ServingError) -> str | None:
    """The text of a `Retry-After` header or `retry-after` metadata: whole seconds, at least 1; None: a retry makes no sense.

    An overload always has a delay, so that rejected clients do not retry at once.
    """
    if error.retry_after_s is not None:
        return str(max(1, math.ceil(error.retry_after_s)))
    return "1" if error.code is ErrorCode.OVERLOADED else None
