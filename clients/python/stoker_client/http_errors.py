"""Converts an HTTP status to an error of the tree."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from stoker_client.errors import (
    Cancelled,
    Conflict,
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

_KINDS: Mapping[int, type[StokerError]] = MappingProxyType(
    {
        401: Unauthenticated,
        403: Forbidden,
        404: NotFound,
        405: Unsupported,
        408: DeadlineExceeded,
        409: Conflict,
        413: TooLarge,
        414: TooLarge,
        415: Unsupported,
        429: Overloaded,
        431: TooLarge,
        499: Cancelled,
        501: Unsupported,
        502: Unavailable,
        503: Unavailable,
        504: DeadlineExceeded,
    }
)

_UNKNOWN_MODEL = "Request for unknown model"
_QUEUE_FULL = "Exceeds maximum queue size"
_SHOWN_CHARACTERS = 500


def error_from_response(status: int, headers: Mapping[str, str], body: bytes | memoryview) -> StokerError:
    """The error for a response with `status`; the text is the body's `error` field, or the whole body if there is none."""
    text = _message(status, bytes(body))
    retry_after_s = _seconds(headers.get("retry-after"))
    kind = _KINDS.get(status, InvalidRequest if 400 <= status < 500 else ServerError)
    if status == 400 and _UNKNOWN_MODEL in text:  # Triton and similar servers send 400 where others send 404
        kind = NotFound
    elif status == 503 and (retry_after_s is not None or _QUEUE_FULL in text):
        kind = Overloaded
    return kind(text, status=status, retry_after_s=retry_after_s)


def _message(status: int, body: bytes) -> str:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        for key in ("error", "detail", "message"):
            if isinstance(parsed.get(key), str) and parsed[key]:
                return str(parsed[key])
    shown = " ".join(body[:_SHOWN_CHARACTERS].decode("utf-8", "replace").split())
    return f"HTTP status {status}: {shown}" if shown else f"HTTP status {status}"


def _seconds(text: str | None) -> float | None:
    """The seconds of a Retry-After header; None for the date form, which inference servers do not use."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
