"""Ends a gRPC call with the status that an error maps to."""

import logging
from typing import NoReturn

import grpc
import grpc.aio

from backends.api.errors import ServingError
from server.frontends.status import kserve_status, retry_after_seconds

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_INTERNAL_TEXT = "internal error: see the server's log"
_log = logging.getLogger(__name__)


async def abort(context: grpc.aio.ServicerContext, error: ServingError) -> NoReturn:
    """Ends the call with `error`; `retry-after` goes along as trailing metadata where trying again makes sense."""
    after = retry_after_seconds(error)
    trailing = () if after is None else (("retry-after", after),)
    await context.abort(_CODES[kserve_status(error).grpc], error.message, trailing)
    raise AssertionError("abort returned")


async def abort_unexpected(context: grpc.aio.ServicerContext, method: str) -> NoReturn:
    """Ends the call for a defect of the server: the traceback goes to the log, nothing of it to the client."""
    _log.exception("%s failed unexpectedly", method)
    await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL_TEXT)
    raise AssertionError("abort returned")
