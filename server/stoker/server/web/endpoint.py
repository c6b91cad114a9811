"""What endpoints behind FastAPI have in common: the call that a request is, its small JSON body, a JSON answer."""

from typing import Any

import orjson
from fastapi import Request, Response

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.protocols.exchange import read_body, reservation_of
from stoker.server.protocols.kserve.http_codec import message_to_json
from stoker.server.web.call import HttpCall
from stoker.server.web.repository import parse_object

JSON_TYPE = "application/json"


def call_of(request: Request) -> HttpCall:
    """The request as the `Call` that handlers know."""
    return HttpCall(request.scope["headers"])


async def read_object(request: Request, engine: Engine, limits: Limits) -> dict[str, Any]:
    """The JSON object of a small control request's body; empty where there is no body.

    Raises:
        InvalidRequest: it is no JSON object. TooLarge: it is longer than `limits.control_bytes`. Overloaded: `engine` has no room for it.
        ClientGone: nobody is left to answer.
    """
    with reservation_of(engine.budget, request.scope) as reservation:
        body = await read_body(request.receive, dict(request.scope["headers"]), reservation, limits, limits.control_bytes)
        return parse_object(body, limits)


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as the body."""
    return Response(orjson.dumps(value), status, media_type=JSON_TYPE)


def message_response(message: Any) -> Response:
    """A protobuf message, printed as KServe's clients expect it, as the body."""
    return json_response(message_to_json(message))
