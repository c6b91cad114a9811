"""The taxonomy's numbers: each error code once, for HTTP and for gRPC, and what Triton's protocol promises otherwise."""

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
from stoker.server.rpc.grpc_codes import (
    ABORTED,
    ALREADY_EXISTS,
    CANCELLED,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)


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
    """The status of `error` on a protocol that promises what `overrides` say, by the error's class, and the taxonomy's otherwise."""
    for kind in type(error).__mro__:
        if kind in overrides:
            return overrides[kind]
    return STATUS[error.code]


#: What Triton's clients were promised instead, by the error's class.
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


#: What Adlik's clients were promised instead: a full queue is UNAVAILABLE, a time-out in the queue RESOURCE_EXHAUSTED.
ADLIK_OVERRIDES: Final[dict[type, Status]] = {
    Overloaded: Status(503, UNAVAILABLE),
    QueueTimeout: Status(429, RESOURCE_EXHAUSTED),
    Conflict: Status(409, ABORTED),
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
