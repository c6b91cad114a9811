"""REST below /v1: Adlik and TensorFlow Serving share `:predict` and `/metadata`; `rest_choice` selects the protocol of a request.

`HttpV1` is an ASGI application without FastAPI: `:predict`, which is hot, reaches it directly. TensorFlow Serving reads paths in any case,
and both protocols have their own text for a path that is malformed, so that `HttpV1` reads the path of every request itself.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import orjson
from google.protobuf.json_format import MessageToDict

from stoker.backends.api.errors import DeadlineExceeded, InvalidRequest, ServingError, Unsupported
from stoker.server.codecs.strict_json import Json, memory_cost, parse_json
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.response import HeaderList
from stoker.server.protocols.adlik import rest_choice
from stoker.server.protocols.adlik.request import ModelQuery as AdlikQuery
from stoker.server.protocols.adlik.rest_choice import Dialect
from stoker.server.protocols.adlik.service import NO_TASKS, AdlikService
from stoker.server.protocols.compression import choose_encoding, compress
from stoker.server.protocols.exchange import (
    Receive,
    Scope,
    Send,
    error_response,
    read_body,
    reservation_of,
    send_reserved,
    send_response,
)
from stoker.server.protocols.settings import AdlikSettings, RestV1
from stoker.server.protocols.tfs import json_codec as tfs_json
from stoker.server.protocols.tfs.model_spec import ModelQuery, tfs_status
from stoker.server.protocols.tfs.rest import TfsRest
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.rpc.status import adlik_status

#: Every path that is served here.
PREFIX: Final = re.compile(r"/v1(?:/|\Z)", re.IGNORECASE)
_ROUTE: Final = re.compile(
    r"/v1/models(?:/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?(?::(predict|ml_predict|classify|regress)|/(metadata))?)?\Z",
    re.ASCII | re.IGNORECASE,
)
_JSON: Final = (b"content-type", b"application/json")
_INT64_MAX: Final = (1 << 63) - 1
#: Most digits of a version number.
_DIGITS: Final = 19


class _Route(NamedTuple):
    """A path below /v1.

    Attributes:
        query: The model, in TensorFlow Serving's terms, which have labels too.
        verb: The text after the colon, or `metadata`; empty: the model's status.
    """

    query: ModelQuery
    verb: str

    @property
    def for_adlik(self) -> AdlikQuery:
        return AdlikQuery(self.query.name, self.query.version)


@dataclass(slots=True)
class _Exchange:
    """One request. `dialect` is its protocol, as far as is known: errors have that protocol's status."""

    scope: Scope
    receive: Receive
    dialect: Dialect
    forced: Dialect | None = None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.scope["headers"])


class HttpV1:
    """Handles requests below /v1. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, adlik: AdlikService, tfs: TfsService | None = None) -> None:
        """`tfs` None: TensorFlow Serving's services with their default settings."""
        tfs = tfs or TfsService(engine, limits)
        self._engine = engine
        self._limits = limits
        self._adlik = adlik
        self._settings: AdlikSettings = adlik.settings
        self._tfs = TfsRest(engine, limits, tfs)
        self._timeout_s = tfs.settings.rest_timeout_s

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; sends an error response if it fails.

        Raises:
            ClientGone: the client disconnected.
        """
        exchange = _Exchange(scope, receive, Dialect.ADLIK if self._settings.rest_v1 is RestV1.ADLIK else Dialect.TFS)
        query = ModelQuery("")
        try:
            url_query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            exchange.forced = rest_choice.forced(self._settings, url_query)
            exchange.dialect = exchange.forced or exchange.dialect
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            route = self._route(method, exchange)
            query = route.query
            if method == "GET":
                await self._send(exchange, send, self._got(route, exchange))
            else:
                with reservation_of(self._engine.budget, scope) as reservation:
                    response = await self._posted(route, exchange, reservation)
                await self._send(exchange, send, response)
        except ServingError as error:
            if scope["method"] == "POST":
                self._engine.note_failed(
                    Via.ADLIK_HTTP if exchange.dialect is Dialect.ADLIK else Via.TFS_HTTP, error, query.name, query.version
                )
            _, body, headers = error_response(error)
            status = adlik_status if exchange.dialect is Dialect.ADLIK else tfs_status
            await send_response(send, status(error).http, body, headers)

    def _route(self, method: str, exchange: _Exchange) -> _Route:
        """Parses the path.

        Raises:
            InvalidRequest: neither protocol has the path, or not with this method. Unsupported: Adlik's tasks.
        """
        path = exchange.scope["path"]
        found = _ROUTE.match(path)
        if found is None or method not in ("GET", "POST"):
            raise self._malformed(method, path)
        name, version, label, posted, read = found.groups()
        verb = (posted or read or "").lower()
        if (method == "POST") != (posted is not None):
            raise self._malformed(method, path)
        if verb == "ml_predict":
            exchange.dialect = Dialect.ADLIK
            raise Unsupported(NO_TASKS)
        if self._settings.rest_v1 is RestV1.ADLIK and (label or verb not in ("predict", "metadata")):
            raise self._malformed(method, path)
        if name is None:
            raise InvalidRequest("Missing model name in request.")
        if version is not None and (len(version) > _DIGITS or int(version) > _INT64_MAX):
            raise InvalidRequest(f"Failed to convert version: {version[:64]} to numeric.")
        return _Route(ModelQuery(name, None if version is None else int(version), label or ""), verb)

    def _malformed(self, method: str, path: str) -> InvalidRequest:
        expected = "POST /v1/models/<name>[/versions/<number>]:predict or GET /v1/models/<name>[/versions/<number>]/metadata"
        if self._settings.rest_v1 is not RestV1.ADLIK:
            expected += ", or TensorFlow Serving's :classify, :regress, /labels/<label> and GET /v1/models/<name>"
        return InvalidRequest(f"Malformed request: {method} {path[:256]}; expected {expected}")

    def _got(self, route: _Route, exchange: _Exchange) -> bytes:
        """The response to a GET."""
        if not route.verb:
            exchange.dialect = Dialect.TFS
            return self._tfs.status(route.query)
        if exchange.forced is None and not route.query.label:
            exchange.dialect = rest_choice.of_platform(self._settings, self._platform(route.query))
        if exchange.dialect is Dialect.TFS:
            return self._tfs.metadata(route.query)
        response = self._adlik.metadata(route.for_adlik)
        return orjson.dumps(MessageToDict(response, preserving_proto_field_name=True))

    def _platform(self, query: ModelQuery) -> str:
        """The platform of the requested model; empty if no version serves."""
        try:
            return self._engine.describe(query.name, query.version).config.platform
        except ServingError:
            return ""

    async def _posted(self, route: _Route, exchange: _Exchange, reservation: Reservation) -> bytes:
        """The response to a POST."""
        body = await read_body(exchange.receive, exchange.headers, reservation, self._limits)
        given = await self._parsed(body, exchange, reservation)
        if route.verb != "predict" or route.query.label:
            exchange.dialect = Dialect.TFS
        elif exchange.forced is None:
            exchange.dialect = rest_choice.of_body(self._settings, given)
        if exchange.dialect is Dialect.ADLIK:
            return await self._adlik.predicting.from_json(route.for_adlik, given, len(body), reservation)
        responses = {"predict": self._tfs.predict, "classify": self._tfs.classify, "regress": self._tfs.regress}
        response = responses[route.verb](route.query, given, len(body), reservation)
        if self._timeout_s is None:
            return await response
        try:
            async with asyncio.timeout(self._timeout_s):
                return await response
        except TimeoutError:
            raise DeadlineExceeded(f"the request was not completed within {self._timeout_s:g} s (--rest_api_timeout_in_ms)") from None

    async def _parsed(self, body: bytes, exchange: _Exchange, reservation: Reservation) -> Json:
        limits = self._limits
        # Only TensorFlow Serving accepts NaN and Infinity. Invalid JSON is rejected with the text of the selected protocol.
        parse = parse_json if exchange.dialect is Dialect.ADLIK else tfs_json.parse
        if len(body) > limits.decode_inline_bytes:
            reservation.take(await run_off_loop(memory_cost, body, limits))
            return await run_off_loop(parse, body, limits)
        reservation.take(memory_cost(body, limits))
        return parse(body, limits)

    async def _send(self, exchange: _Exchange, send: Send, response: bytes) -> None:
        headers: HeaderList = [_JSON]
        accepted = exchange.headers.get(b"accept-encoding")
        if accepted is not None and len(response) >= self._limits.compress_min_bytes:
            encoding = choose_encoding(accepted.decode("latin-1"))
            if encoding is not None:
                response = await compress([response], encoding, self._limits)
                headers.append((b"content-encoding", encoding.encode()))
        await send_reserved(self._engine.budget, exchange.scope, send, response, headers, self._limits)
