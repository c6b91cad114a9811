"""Everything that is not hot, as a FastAPI app: it calls the same handlers as gRPC and prints their messages as JSON.

Bodies are read by hand, under limits, and whatever Content-Type existing clients send with them.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.core.limits import Limits
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.exchange import INTERNAL_TEXT, ClientGone, error_body, error_response, read_body, reservation_of
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.generate import HttpGenerate
from stoker.server.protocols.kserve.http_codec import message_to_json
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.rpc.restricted import NO_RESTRICTIONS
from stoker.server.web import schemas
from stoker.server.web.endpoint import JSON_TYPE, call_of, json_response, message_response, read_object
from stoker.server.web.model_pages.addresses import GrpcAddress
from stoker.server.web.model_pages.routes import ModelPages
from stoker.server.web.page_policy import docs_page, page_headers
from stoker.server.web.plain import PlainRoute, plain_routes
from stoker.server.web.repository import load_request, unload_request
from stoker.server.web.route_adder import DocumentedApp, Endpoint, RouteAdder
from stoker.server.web.settings_routes import SettingsRoutes
from stoker.server.web.v1 import HttpV1

_MODEL = "/v2/models/{model}"
_V1_MODEL = "/v1/models/{model}"
_VERSION = "/versions/{version}"
_TENSORFLOW = "TensorFlow Serving"
#: What they share is told apart by the request.
_BOTH = "TensorFlow Serving and Adlik"
#: Groups the routes that exist to say no in the protocol's way.
_NOT_OFFERED = "not offered"
_PLAIN_TEXT_RESPONSES: dict[str, Any] = {"/v2/health/live": schemas.Live, "/v2/health/ready": schemas.Ready}
_log = logging.getLogger(__name__)


class RestRoutes:
    """The routes of one HTTP front. Confined to: the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        infer: HttpInfer,
        v1: HttpV1,
        extensions: Extensions | None = None,
        *,
        metrics: bool,
        serving_path: str | None = None,
        grpc: GrpcAddress | None = None,
    ) -> None:
        """`extensions` as `KServeService` takes them; `metrics` says whether metrics are served here too.

        At `serving_path` they are under TensorFlow Serving's names; None: nowhere. `grpc` is the port that models' pages show calls for.
        """
        self._engine = engine
        self._limits = limits
        self._infer = infer
        self._generate = HttpGenerate(engine, limits, None if extensions is None else extensions.http_headers)
        self._v1 = v1
        self._service = KServeService(engine, limits, extensions)
        self._metrics = metrics
        self._serving_path = serving_path
        self._restrictions = NO_RESTRICTIONS if extensions is None else extensions.http_restrictions
        self._pages = ModelPages(engine, grpc, needs_key=self._restrictions.needs_api_key)

    def app(self) -> DocumentedApp:
        """The app, with its OpenAPI page at /docs."""
        server = self._engine.server()
        app = DocumentedApp(
            title=f"{server.name}: KServe v2 inference protocol, TensorFlow Serving's and Adlik's",
            version=server.version,
            restrictions=self._restrictions,
            redirect_slashes=False,
            exception_handlers={ServingError: _respond_with_error, HTTPException: _respond_with_http_error, Exception: _respond_to_defect},
        )
        app.add_page("/docs", _docs)
        app.add_page("/", _to_docs)
        add = RouteAdder(app, self._restrictions)
        add("server", "GET", "/v2", self.server_metadata, "Server metadata", schemas.ServerMetadata)
        for path, route in plain_routes(self._engine, metrics=self._metrics, serving_path=self._serving_path).items():
            # Answered before they get here; other methods, POST say, are refused here as on every other route.
            add(route.tag, "GET", path, _plain(route), route.summary, _PLAIN_TEXT_RESPONSES.get(path), category=route.category)
        add("models", "GET", "/v2/models/stats", self.statistics, "Statistics of all models", schemas.ModelStatisticsResponse)
        for path in (_MODEL, _MODEL + _VERSION):
            add("models", "GET", path, self.model_metadata, "Model metadata", schemas.ModelMetadata)
            add("models", "GET", f"{path}/ready", self.model_ready, "Model readiness", schemas.ModelReady)
            add("models", "GET", f"{path}/config", self.model_config, "Model configuration", None)
            add("models", "GET", f"{path}/stats", self.statistics, "Model statistics", schemas.ModelStatisticsResponse)
            add("inference", "POST", f"{path}/infer", self.infer, "Inference", schemas.InferResponseBody, schemas.InferRequestBody)
            add("inference", "POST", f"{path}/generate", self.generate, "Flat JSON in and out", None, schemas.GenerateRequestBody)
            add(
                "inference",
                "POST",
                f"{path}/generate_stream",
                self.generate_stream,
                "Flat JSON in, server-sent events out",
                None,
                schemas.GenerateRequestBody,
            )
        for root in ("/v2/repository", "/v2/repository/{repository}"):
            index = (self.index, "Repository index", list[schemas.IndexEntryResponse], schemas.IndexRequestBody)
            add("repository", "POST", f"{root}/index", *index)
            add("repository", "POST", f"{root}/models/{{model}}/load", self.load, "Load a model", None, schemas.LoadRequestBody)
            add("repository", "POST", f"{root}/models/{{model}}/unload", self.unload, "Unload a model", None, schemas.UnloadRequestBody)
        self._pages.add_to(add)
        SettingsRoutes(self._engine, self._limits, self._service, self._restrictions).add_to(add)
        for path in (_V1_MODEL, _V1_MODEL + _VERSION):
            add(_BOTH, "POST", f"{path}:predict", self.v1, "Inference", schemas.PredictResponse, schemas.PredictBody)
            add(_BOTH, "GET", f"{path}/metadata", self.v1, "Model metadata", schemas.Metadata)
            add(_NOT_OFFERED, "POST", f"{path}:ml_predict", self.v1, "Adlik's tasks (not offered)", None)
        for path in (_V1_MODEL, _V1_MODEL + _VERSION, _V1_MODEL + "/labels/{label}"):
            add(_TENSORFLOW, "GET", path, self.v1, "States of a model's versions", None)
            add(_TENSORFLOW, "POST", f"{path}:classify", self.v1, "Labelled scores of examples", None)
            add(_TENSORFLOW, "POST", f"{path}:regress", self.v1, "A number for each example", None)
        add(_TENSORFLOW, "POST", f"{_V1_MODEL}/labels/{{label}}:predict", self.v1, "Inference by a labelled version", None)
        add(_TENSORFLOW, "GET", f"{_V1_MODEL}/labels/{{label}}/metadata", self.v1, "Metadata of a labelled version", None)
        return app

    async def server_metadata(self, request: Request) -> Response:
        return message_response(await self._service.server_metadata(pb.ServerMetadataRequest(), call_of(request)))

    async def model_metadata(self, request: Request) -> Response:
        name, version = _target(request)
        return message_response(await self._service.model_metadata(pb.ModelMetadataRequest(name=name, version=version), call_of(request)))

    async def model_ready(self, request: Request) -> Response:
        name, version = _target(request)
        response = await self._service.model_ready(pb.ModelReadyRequest(name=name, version=version), call_of(request))
        return json_response({"name": name, "ready": response.ready}, 200 if response.ready else 400)

    async def model_config(self, request: Request) -> Response:
        name, version = _target(request)
        response = await self._service.model_config(pb.ModelConfigRequest(name=name, version=version), call_of(request))
        return message_response(response.config)

    async def statistics(self, request: Request) -> Response:
        name, version = _target(request) if "model" in request.path_params else ("", "")
        message = pb.ModelStatisticsRequest(name=name, version=version)
        return message_response(await self._service.model_statistics(message, call_of(request)))

    async def infer(self, request: Request) -> Response:
        name, version = _target(request)
        return _Direct(partial(self._infer.respond, name, parse_version(version, name)))

    async def generate(self, request: Request) -> Response:
        name, version = _target(request)
        return _Direct(partial(self._generate.respond, name, parse_version(version, name)))

    async def generate_stream(self, request: Request) -> Response:
        name, version = _target(request)
        return _Direct(partial(self._generate.respond_streaming, name, parse_version(version, name)))

    async def v1(self, request: Request) -> Response:
        return _Direct(self._v1.respond)

    async def index(self, request: Request) -> Response:
        given = await read_object(request, self._engine, self._limits)
        ready = given.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("'ready' must be a boolean")
        message = pb.RepositoryIndexRequest(repository_name=_repository(request), ready=ready)
        response = await self._service.repository_index(message, call_of(request))
        # What was never loaded has no version and no state: left out, as Triton does.
        return json_response([{key: value for key, value in message_to_json(entry).items() if value} for entry in response.models])

    async def load(self, request: Request) -> Response:
        name = check_model_name(request.path_params["model"])
        repository, limits = _repository(request), self._limits
        with reservation_of(self._engine.budget, request.scope) as reservation:
            body = await read_body(request.receive, dict(request.scope["headers"]), reservation, limits)
            # The files stand in memory decoded too, in the message and in what is made of it, until the load is over.
            reservation.take(2 * len(body))
            if len(body) > limits.decode_inline_bytes:
                message = await run_off_loop(load_request, name, repository, body, limits)
            else:
                message = load_request(name, repository, body, limits)
            await self._service.repository_model_load(message, call_of(request))
        return json_response({})

    async def unload(self, request: Request) -> Response:
        name = check_model_name(request.path_params["model"])
        message = unload_request(name, _repository(request), await read_object(request, self._engine, self._limits))
        await self._service.repository_model_unload(message, call_of(request))
        return json_response({})


class _Direct(Response):
    """Hands a request that came through FastAPI to the same code as one that did not."""

    def __init__(self, respond: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._respond(scope, receive, send)


def _plain(route: PlainRoute) -> Endpoint:
    async def response(_request: Request) -> Response:
        status, body, content_type = route.response()
        return Response(body, status, media_type=content_type)

    return response


def _target(request: Request) -> tuple[str, str]:
    version = request.path_params.get("version", "")
    if version and not (version.isascii() and version.isdigit()):
        raise HTTPException(404)
    return check_model_name(request.path_params["model"]), version


def _repository(request: Request) -> str:
    if "repository" in request.path_params:
        raise Unsupported("'repository_name' specification is not supported")
    return ""


async def _docs(_request: Request) -> Response:
    text, policy = docs_page()
    return Response(text, media_type="text/html; charset=utf-8", headers=page_headers(policy))


async def _to_docs(_request: Request) -> Response:
    return Response(status_code=307, headers={"location": "docs"})  # relative: right behind a path prefix, too


async def _respond_with_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServingError):
        raise error
    status, body, headers = error_response(error)
    return Response(body, status, {name.decode(): value.decode() for name, value in headers})


async def _respond_with_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return Response(error_body(error.detail), error.status_code, error.headers, media_type=JSON_TYPE)


async def _respond_to_defect(request: Request, error: Exception) -> Response:
    if not isinstance(error, ClientGone):
        _log.error("%s failed unexpectedly", request.scope["path"], exc_info=error)
    return Response(error_body(INTERNAL_TEXT), 500, media_type=JSON_TYPE)
