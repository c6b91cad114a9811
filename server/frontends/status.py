"""The taxonomy's numbers: each error code once, for HTTP and for gRPC, and what Triton's protocol promises otherwise.

gRPC codes are held as plain numbers, so that the HTTP front needs no grpc.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from backends.api.errors import AlreadyExists, Conflict, ErrorCode, Overloaded, QueueTimeout, RestrictedCall, ServingError, UnknownModel


class Status(NamedTuple):
    """HTTP status and gRPC status code of one kind of failure."""

    http: int
    grpc: int


_CANCELLED: Final = 1
_INVALID_ARGUMENT: Final = 3
_DEADLINE_EXCEEDED: Final = 4
_NOT_FOUND: Final = 5
_ALREADY_EXISTS: Final = 6
_PERMISSION_DENIED: Final = 7
_RESOURCE_EXHAUSTED: Final = 8
_FAILED_PRECONDITION: Final = 9
_ABORTED: Final = 10
_UNIMPLEMENTED: Final = 12
_INTERNAL: Final = 13
_UNAVAILABLE: Final = 14
_UNAUTHENTICATED: Final = 16

STATUS: Final[dict[ErrorCode, Status]] = {
    ErrorCode.INVALID_REQUEST: Status(400, _INVALID_ARGUMENT),
    ErrorCode.TOO_LARGE: Status(413, _RESOURCE_EXHAUSTED),
    ErrorCode.UNAUTHENTICATED: Status(401, _UNAUTHENTICATED),
    ErrorCode.FORBIDDEN: Status(403, _PERMISSION_DENIED),
    ErrorCode.NOT_FOUND: Status(404, _NOT_FOUND),
    ErrorCode.CONFLICT: Status(409, _FAILED_PRECONDITION),
    ErrorCode.OVERLOADED: Status(429, _UNAVAILABLE),
    ErrorCode.UNAVAILABLE: Status(503, _UNAVAILABLE),
    ErrorCode.DEADLINE: Status(504, _DEADLINE_EXCEEDED),
    ErrorCode.CANCELLED: Status(499, _CANCELLED),
    ErrorCode.UNSUPPORTED: Status(501, _UNIMPLEMENTED),
    ErrorCode.BACKEND_FAILED: Status(500, _INTERNAL),
    ErrorCode.INTERNAL: Status(500, _INTERNAL),
}


def status_of(error: ServingError, overrides: Mapping[type, Status]) -> Status:
    """The status of `error` on a protocol that promises what `overrides` say, by the error's class, and the taxonomy's otherwise."""
    for kind in type(error).__mro__:
        if kind in overrides:
            return overrides[kind]
    return STATUS[error.code]


#: What Triton's clients were promised instead, by the error's class.
KSERVE_OVERRIDES: Final[dict[type, Status]] = {
    UnknownModel: Status(400, _NOT_FOUND),
    AlreadyExists: Status(400, _ALREADY_EXISTS),
    RestrictedCall: Status(403, _UNAVAILABLE),
    Overloaded: Status(503, _UNAVAILABLE),
    QueueTimeout: Status(503, _UNAVAILABLE),
}


def kserve_status(error: ServingError) -> Status:
    """The status of `error` on the KServe v2 protocol."""
    return status_of(error, KSERVE_OVERRIDES)


#: What Adlik's clients were promised instead: a full queue is UNAVAILABLE, a time-out in the queue RESOURCE_EXHAUSTED.
ADLIK_OVERRIDES: Final[dict[type, Status]] = {
    Overloaded: Status(503, _UNAVAILABLE),
    QueueTimeout: Status(429, _RESOURCE_EXHAUSTED),
    Conflict: Status(409, _ABORTED),
}


def adlik_status(error: ServingError) -> Status:
    """The status of `error` on Adlik's protocol."""
    return status_of(error, ADLIK_OVERRIDES)


def retry_after_seconds(error: ServingError) -> str | None:
    """The text of a `Retry-After` header or `retry-after` metadata: whole seconds, at least 1; None where trying again makes no sense.

    An overload always names one, so that refused clients do not come back at once.
    """
    if error.retry_after_s is not None:
        return str(max(1, math.ceil(error.retry_after_s)))
    return "1" if error.code is ErrorCode.OVERLOADED else None
