"""The status of failed calls: code, text cut to the size that reaches a client, and trailers with the retry delay."""

import logging
import traceback
from typing import Final, NamedTuple

from stoker.backends.api.errors import ServingError
from stoker.server.rpc.method import Method
from stoker.server.rpc.status import INTERNAL, STATUS_DETAILS, retry_after_seconds, status_details

Trailers = tuple[tuple[str, str | bytes], ...]
"""Metadata that goes with a status; a value is bytes where its name ends in `-bin`."""

_INTERNAL_TEXT: Final = "internal error: see the server's log"
#: grpcio drops a status text of more than 2 KiB on the wire, and logs that on stderr.
_TEXT_BYTES: Final = 1900
_log = logging.getLogger(__name__)


class Rejection(NamedTuple):
    """The status of a failed call.

    Attributes:
        code: gRPC status code.
        text: The status message for the client.
        trailers: Metadata sent with the status.
    """

    code: int
    text: str
    trailers: Trailers = ()


class CallFault(Exception):
    """The client broke a rule of gRPC. `rejection` holds the status that all gRPC implementations send."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.text)
        self.rejection = rejection


def rejection_of(error: Exception, method: Method) -> Rejection:
    """The response to a call of `method` whose handler raised `error`.

    Anything but a `ServingError` is a defect of the server: the traceback goes to the log, nothing of it to the client.
    """
    if isinstance(error, CallFault):
        return error.rejection
    if not isinstance(error, ServingError):
        # As text: a log record with the traceback object would keep the request in memory as long as the record exists.
        _log.error("%s failed unexpectedly\n%s", method.path, "".join(traceback.format_exception(error)).rstrip())
        return Rejection(INTERNAL, _INTERNAL_TEXT)
    if method.failed is not None:
        method.failed(error)
    code, text = method.status(error).grpc, truncated(error.message)
    after = retry_after_seconds(error)
    if after is None:
        return Rejection(code, text)
    details = status_details(code, text, error.code.name, error.retry_after_s or float(after))
    return Rejection(code, text, (("retry-after", after), (STATUS_DETAILS, details)))


def truncated(text: str) -> str:
    """The beginning of `text` that fits the limit: printable ASCII takes one byte on the wire, any other byte of UTF-8 three."""
    # A character takes at most twelve bytes.
    if len(text) * 12 <= _TEXT_BYTES:
        return text
    size = 0
    for at, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > _TEXT_BYTES:
            return f"{text[:at]}..."
    return text
