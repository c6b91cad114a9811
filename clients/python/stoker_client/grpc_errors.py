"""Converts a gRPC status to an error of the tree, for the synchronous and the asynchronous transport.

UNAVAILABLE has three causes: gRPC got no connection, a connection broke, or the server sent the status. gRPC distinguishes them only in its
text. The server sends `retry-after` if it rejected the call before it ran.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import grpc

from stoker_client.errors import (
    Cancelled,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    ServerError,
    StokerError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

_KINDS: Mapping[grpc.StatusCode, type[StokerError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
        grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
        grpc.StatusCode.PERMISSION_DENIED: Forbidden,
        grpc.StatusCode.NOT_FOUND: NotFound,
        grpc.StatusCode.ALREADY_EXISTS: Conflict,
        grpc.StatusCode.FAILED_PRECONDITION: Conflict,
        grpc.StatusCode.ABORTED: Conflict,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
        grpc.StatusCode.CANCELLED: Cancelled,
        grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    }
)

# gRPC's texts for a call without a connection.
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed", "empty address list")
# gRPC's texts for a call whose connection ended.
_BROKEN = (
    "Socket closed",
    "Stream removed",
    "Connection reset",
    "Broken pipe",
    "GOAWAY",
    "recvmsg",
    "keepalive",
    "transport",
    "Channel closed",
)
_QUEUE_FULL = "Exceeds maximum queue size"

Metadata = Iterable[tuple[str, str | bytes]]


def error_from_status(code: grpc.StatusCode, details: str | None, trailing: Metadata | None) -> StokerError:
    """The error for a call that ended with `code`; `trailing` is its trailing metadata."""
    text = details or f"the call ended with {code.name}"
    metadata = list(trailing or ())
    retry_after_s = _retry_after_s(metadata)
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unavailable(text, metadata, retry_after_s)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        is_rejection = retry_after_s is not None or "oncurrent" in text
        return (Overloaded if is_rejection else TooLarge)(text, status=code.name, retry_after_s=retry_after_s)
    return _KINDS.get(code, ServerError)(text, status=code.name, retry_after_s=retry_after_s)


def _unavailable(text: str, metadata: list[tuple[str, str | bytes]], retry_after_s: float | None) -> StokerError:
    if retry_after_s is not None or _QUEUE_FULL in text:
        return Overloaded(text, status="UNAVAILABLE", retry_after_s=retry_after_s)
    if not metadata and text.startswith(_NEVER_SENT):
        return ConnectionFailed(text, request_may_have_run=False, status="UNAVAILABLE")
    if not metadata and any(sign in text for sign in _BROKEN):
        return ConnectionFailed(text, request_may_have_run=True, status="UNAVAILABLE")
    return Unavailable(text, status="UNAVAILABLE")


def _retry_after_s(metadata: Metadata) -> float | None:
    for key, value in metadata:
        if key in ("retry-after", "grpc-retry-pushback-ms"):
            try:
                number = float(value)
            except ValueError:
                continue
            if 0 <= number < float("inf"):
                return number / 1000 if key.endswith("-ms") else number
    return None
