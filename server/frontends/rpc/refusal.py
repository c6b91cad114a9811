"""Ends a gRPC call with the status that an error maps to.

The status is set, and the handler returns: `context.abort` would raise an exception that gRPC's own call state holds on to, in a cycle with
every frame it went through, and so keep the refused request in memory until the next full collection.
"""

import logging

import grpc
import grpc.aio

from backends.api.errors import ServingError
from server.frontends.status import Status, kserve_status, retry_after_seconds

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_INTERNAL_TEXT = "internal error: see the server's log"
#: gRPC drops a status text that takes more than 2 KiB on the wire, with a line of its own on stderr.
_TEXT_BYTES = 1900
_log = logging.getLogger(__name__)


def refuse(context: grpc.aio.ServicerContext, error: ServingError, status: Status | None = None) -> None:
    """Sets the status of `error` (by default that of KServe v2); `retry-after` goes along as trailing metadata where it makes sense."""
    after = retry_after_seconds(error)
    if after is not None:
        context.set_trailing_metadata((("retry-after", after),))
    context.set_code(_CODES[(status or kserve_status(error)).grpc])
    context.set_details(_cut(error.message))


def refuse_unexpected(context: grpc.aio.ServicerContext, method: str) -> None:
    """Sets the status for a defect of the server: the traceback goes to the log, nothing of it to the client."""
    _log.exception("%s failed unexpectedly", method)
    context.set_code(grpc.StatusCode.INTERNAL)
    context.set_details(_INTERNAL_TEXT)


def _cut(text: str) -> str:
    """As much of `text` as reaches a client: printable ASCII takes one byte on the wire, any other byte of its UTF-8 form takes three."""
    # No character takes more than twelve.
    if len(text) * 12 <= _TEXT_BYTES:
        return text
    size = 0
    for at, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > _TEXT_BYTES:
            return f"{text[:at]}..."
    return text
