"""The REST routes below /v1 at ASGI level, without any framework between the connection and the codec. Paths are read in any case."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import orjson
from google.protobuf.json_format import MessageToDict

from backends.api.errors import InvalidRequest, ServingError, Unsupported
from server.engine.interface import Engine
from server.frontends.adlik import rest_choice
from server.frontends.adlik.model_spec import ModelAsk
from server.frontends.adlik.rest_choice import Dialect
from server.frontends.adlik.service import NO_TASKS, AdlikService
from server.frontends.adlik.settings import AdlikSettings, RestV1
from server.frontends.http.compression import choose_encoding, compress
from server.frontends.http.exchange import HeaderList, Receive, Scope, Send, error_response, read_body, send_response
from server.frontends.kserve.reservation import Reservation
from server.frontends.limits import Limits
from server.frontends.off_loop import run_off_loop
from server.frontends.status import adlik_status
from server.frontends.strict_json import Json, memory_cost, parse_json

#: Every path that is answered here.
PREFIX: Final = re.compile(r"/v1(?:/|\Z)", re.IGNORECASE)
_MODEL: Final = r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,19}))?"
_PREDICT: Final = re.compile(_MODEL + r":predict\Z", re.ASCII | re.IGNORECASE)
_TASK: Final = re.compile(_MODEL + r":ml_predict\Z", re.ASCII | re.IGNORECASE)
_METADATA: Final = re.compile(_MODEL + r"/metadata\Z", re.ASCII | re.IGNORECASE)
#: What TensorFlow Serving has beside the two URLs that it shares with Adlik.
_TFS_ONLY: Final = re.compile(
    r"/v1/models/[^/:]+(?:/versions/[0-9]+|/labels/[^/:]+)?(?::(?:classify|regress|predict)|/metadata)?\Z", re.ASCII | re.IGNORECASE
)
NO_TFS: Final = (
    "this is a request of TensorFlow Serving's REST interface, which this server does not offer; "
    "Adlik's form has inputs, batch_size and tensors with tensor_content (?format=adlik asks for it), and KServe v2 is below /v2"
)
_JSON: Final = (b"content-type", b"application/json")
_WRONG: Final = "Malformed request"


class HttpV1:
    """Answers what comes below /v1. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, service: AdlikService) -> None:
        self._engine = engine
        self._limits = limits
        self._service = service
        self._settings: AdlikSettings = service.settings

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, also with an error.

        Raises:
            ClientGone: nobody is left to answer.
        """
        try:
            await self._respond(scope, receive, send)
        except ServingError as error:
            _, body, headers = error_response(error)
            await send_response(send, adlik_status(error).http, body, headers)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if method == "POST" and (route := _PREDICT.match(path)):
            await self._predict(_ask(route), query, scope, receive, send)
        elif method == "POST" and _TASK.match(path):
            raise Unsupported(NO_TASKS)
        elif method in ("GET", "HEAD") and (route := _METADATA.match(path)):
            await self._send(scope, send, self._metadata(_ask(route), query))
        elif self._settings.rest_v1 is not RestV1.ADLIK and not _is_shared(path) and _TFS_ONLY.match(path):
            raise Unsupported(NO_TFS)
        else:
            raise InvalidRequest(
                f"{_WRONG}: {method} of this path; expected POST /v1/models/<name>[/versions/<number>]:predict "
                "or GET /v1/models/<name>[/versions/<number>]/metadata"
            )

    async def _predict(self, model: ModelAsk, query: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        dialect = rest_choice.forced(self._settings, query)
        with Reservation(self._engine) as reservation:
            body = await read_body(receive, headers, reservation, self._limits)
            given = await self._parsed(body, reservation)
            if (dialect or rest_choice.of_body(given)) is Dialect.TFS:
                raise Unsupported(NO_TFS)
            answer = await self._service.predicting.from_json(model, given, len(body), reservation)
            await self._send(scope, send, answer)

    async def _parsed(self, body: bytes, reservation: Reservation) -> Json:
        limits = self._limits
        if len(body) > limits.decode_inline_bytes:
            reservation.take(await run_off_loop(memory_cost, body, limits))
            return await run_off_loop(parse_json, body, limits)
        reservation.take(memory_cost(body, limits))
        return parse_json(body, limits)

    def _metadata(self, ask: ModelAsk, query: Mapping[str, str]) -> bytes:
        dialect = rest_choice.forced(self._settings, query)
        answer = None
        if dialect is not Dialect.TFS:
            answer = self._service.metadata(ask)
            dialect = dialect or rest_choice.of_platform(self._settings, answer.config.platform)
        if dialect is Dialect.TFS or answer is None:
            raise Unsupported(NO_TFS)
        return orjson.dumps(MessageToDict(answer, preserving_proto_field_name=True))

    async def _send(self, scope: Scope, send: Send, answer: bytes) -> None:
        headers: HeaderList = [_JSON]
        accepted = dict(scope["headers"]).get(b"accept-encoding")
        if accepted is not None and len(answer) >= self._limits.compress_min_bytes:
            encoding = choose_encoding(accepted.decode("latin-1"))
            if encoding is not None:
                answer = await compress(answer, encoding, self._limits)
                headers.append((b"content-encoding", encoding.encode()))
        await send_response(send, 200, answer, headers)


def _is_shared(path: str) -> bool:
    """Whether both protocols have the path, so that a wrong method is wrong in both."""
    return bool(_PREDICT.match(path) or _METADATA.match(path))


def _ask(route: re.Match[str]) -> ModelAsk:
    return ModelAsk(route[1], None if route[2] is None else int(route[2]))
