"""REST below /v1: Adlik and TensorFlow Serving share `:predict` and `/metadata`; `rest_choice` selects the protocol of a request.

`HttpV1` is an ASGI application without FastAPI: `:predict`, which is hot, reaches it directly. TensorFlow Serving reads paths in any case,
and both protocols have their own text for a path that is malformed, so that `HttpV1` reads the path of every request itself.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import orjson
from google.protobuf.json_format import MessageToDict

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.protocols.adlik import rest_choice
from stoker.server.protocols.adlik.request import ModelQuery as AdlikQuery
from stoker.server.protocols.adlik.rest_choice import Dialect
from stoker.server.protocols.adlik.service import NO_TASKS, AdlikService
from stoker.server.protocols.compression import choose_encoding
from stoker.server.protocols.exchange import Receive, Scope, Send, error_response, read_body, reservation_of, send_reserved, send_response
from stoker.server.protocols.openai.models import OpenAiModels
from stoker.server.protocols.settings import AdlikSettings, RestV1
from stoker.server.protocols.tfs.model_spec import ModelQuery
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.web.v1_posts import PostedRequest, V1Posts

#: Every path that is served here.
PREFIX: Final = re.compile(r"/v1(?:/|\Z)", re.IGNORECASE)
_ROUTE: Final = re.compile(
    r"/v1/models(?:/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?(?::(predict|ml_predict|classify|regress)|/(metadata))?)?\Z",
    re.ASCII | re.IGNORECASE,
)
_INT64_MAX: Final = (1 << 63) - 1
#: Most digits of a version number.
_DIGITS: Final = 19


class HttpV1:
    """Handles requests below /v1. Confined to: the event loop.

    Attributes:
        posts: Handles inference.
    """

    def __init__(self, engine: Engine, limits: Limits, adlik: AdlikService, tfs: TfsService | None = None) -> None:
        """`tfs` None: TensorFlow Serving's services with their default settings."""
        self._engine = engine
        self._limits = limits
        self._adlik = adlik
        self._settings: AdlikSettings = adlik.settings
        self._models = OpenAiModels(engine)
        self.posts = V1Posts(engine, limits, adlik, tfs or TfsService(engine, limits))

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; sends an error response if it fails.

        Raises:
            ClientGone: the client disconnected.
        """
        request = PostedRequest(ModelQuery(""), "", None, self.posts.default_dialect)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            url_query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            request.forced = rest_choice.forced(self._settings, url_query)
            request.dialect = request.forced or request.dialect
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            self._route(method, scope["path"], request)
            if method == "GET":
                await self._send(scope, headers, send, self._got(request))
            else:
                with reservation_of(self._engine.budget, scope) as reservation:
                    body = await read_body(receive, headers, reservation, self._limits)
                    response = await self.posts.response(request, body, reservation)
                await self._send(scope, headers, send, response)
        except ServingError as error:
            query = request.query
            if scope["method"] == "POST":
                self._engine.note_failed(request.via, error, query.name, query.version)
            _, text, fields = error_response(error)
            await send_response(send, request.status(error), text, fields)

    def _route(self, method: str, path: str, request: PostedRequest) -> None:
        """Parses the path into `request`, whose `verb` is `metadata`, or empty for the model's status, if the method is GET.

        Raises:
            InvalidRequest: neither protocol has the path, or not with this method. Unsupported: Adlik's tasks.
        """
        found = _ROUTE.match(path)
        if found is None or method not in ("GET", "POST"):
            raise self._malformed(method, path)
        name, version, label, posted, read = found.groups()
        verb = (posted or read or "").lower()
        if (method == "POST") != (posted is not None):
            raise self._malformed(method, path)
        if verb == "ml_predict":
            request.dialect = Dialect.ADLIK
            raise Unsupported(NO_TASKS)
        if self._settings.rest_v1 is RestV1.ADLIK and (label or verb not in ("predict", "metadata")):
            raise self._malformed(method, path)
        if name is None:
            raise InvalidRequest("Missing model name in request.")
        if version is not None and (len(version) > _DIGITS or int(version) > _INT64_MAX):
            raise InvalidRequest(f"Failed to convert version: {version[:64]} to numeric.")
        request.query = ModelQuery(name, None if version is None else int(version), label or "")
        request.verb = verb

    def _malformed(self, method: str, path: str) -> InvalidRequest:
        expected = "POST /v1/models/<name>[/versions/<number>]:predict or GET /v1/models/<name>[/versions/<number>]/metadata"
        if self._settings.rest_v1 is not RestV1.ADLIK:
            expected += ", or TensorFlow Serving's :classify, :regress, /labels/<label> and GET /v1/models/<name>"
        return InvalidRequest(f"Malformed request: {method} {path[:256]}; expected {expected}")

    def _got(self, request: PostedRequest) -> bytes:
        """The response to a GET."""
        query = request.query
        if not request.verb:
            request.dialect = Dialect.TFS
            return self._status(query)
        if request.forced is None and not query.label:
            request.dialect = rest_choice.of_platform(self._settings, self._platform(query))
        if request.dialect is Dialect.TFS:
            return self.posts.rest.metadata(query)
        response = self._adlik.metadata(AdlikQuery(query.name, query.version))
        return orjson.dumps(MessageToDict(response, preserving_proto_field_name=True))

    def _status(self, query: ModelQuery) -> bytes:
        """The states of a model's versions. A model of OpenAI's API has the keys of OpenAI's object too: both protocols have this path."""
        status = self.posts.rest.status(query)
        found = None if query.version is not None or query.label else self._models.object_of(query.name)
        return status if found is None else orjson.dumps({**found, **orjson.loads(status)})

    def _platform(self, query: ModelQuery) -> str:
        """The platform of the requested model; empty if no version serves."""
        try:
            return self._engine.describe(query.name, query.version).config.platform
        except ServingError:
            return ""

    async def _send(self, scope: Scope, headers: Mapping[bytes, bytes], send: Send, response: bytes) -> None:
        accepted = headers.get(b"accept-encoding")
        encoding = None if accepted is None else choose_encoding(accepted.decode("latin-1"))
        response, fields = await self.posts.compressed(response, encoding)
        await send_reserved(self._engine.budget, scope, send, response, fields, self._limits)
