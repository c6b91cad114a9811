"""All routes of the HTTP port as one FastAPI application. It is imported when the first request needs it."""

import logging
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import RootModel

from stoker.backends.api.errors import ServingError
from stoker.server.core.tasks import run_off_loop
from stoker.server.net.http1.response import HeaderList
from stoker.server.protocols.adlik.routes import AdlikMetadata, AdlikPredictBody, AdlikPredictResponse, adlik_router
from stoker.server.protocols.exchange import INTERNAL_TEXT, ClientGone, error_body, error_response
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.generate import HttpGenerate
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.routes import KServeRoutes
from stoker.server.protocols.kserve.schemas import ErrorResponse, Live, Ready
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.protocols.openai import errors as openai_errors
from stoker.server.protocols.openai.routes import is_openai_path, openai_router, unserved
from stoker.server.protocols.openai.service import OpenAiService
from stoker.server.protocols.routing import JSON_TYPE, CodecResponse, Respond, RouteContext, json_response, rejection_of
from stoker.server.protocols.tfs.routes import (
    MODEL_PATHS,
    ServingColumnsBody,
    ServingColumnsResponse,
    ServingMetadata,
    ServingRowsBody,
    ServingRowsResponse,
    tfs_router,
)
from stoker.server.web.console.feed import Feed
from stoker.server.web.console.routes import console_router
from stoker.server.web.page_routes import page_router
from stoker.server.web.plain import PlainRoute
from stoker.server.web.settings import GrpcAddress
from stoker.server.web.v1 import PREFIX


class PredictBody(RootModel[ServingRowsBody | ServingColumnsBody | AdlikPredictBody]):
    """TensorFlow Serving's rows or columns, or Adlik's request: the body decides whose it is, or `?format=tfs`, `?format=adlik`."""


class PredictResponse(RootModel[ServingRowsResponse | ServingColumnsResponse | AdlikPredictResponse]):
    """In the form of the request."""


class Metadata(RootModel[ServingMetadata | AdlikMetadata]):
    """TensorFlow Serving's, or Adlik's: see `--rest_v1`; `?format=tfs` and `?format=adlik` decide for one request."""


def shared_router(context: RouteContext, respond: Respond) -> APIRouter:
    """The routes below /v1 that TensorFlow Serving and Adlik share; `respond` serves all of /v1."""
    router = context.router()
    body = context.codec_body(PredictBody)

    async def respond_by_codec() -> Response:
        return CodecResponse(respond)

    for path, parameters in MODEL_PATHS:
        add: dict[str, Any] = {"tags": ["TensorFlow Serving and Adlik"], "dependencies": [parameters]}
        router.add_api_route(
            f"{path}:predict",
            respond_by_codec,
            methods=["POST"],
            summary="Inference",
            responses={200: {"model": PredictResponse}},
            openapi_extra=body,
            name=f"POST {path}:predict",
            **add,
        )
        router.add_api_route(
            f"{path}/metadata",
            respond_by_codec,
            summary="Model metadata",
            responses={200: {"model": Metadata}},
            name=f"GET {path}/metadata",
            **add,
        )
    return router


_HEALTH_BODIES: dict[str, Any] = {"/v2/health/live": Live, "/v2/health/ready": Ready}
_log = logging.getLogger(__name__)


def rest_app(
    context: RouteContext,
    extensions: Extensions,
    infer: HttpInfer,
    v1: Respond,
    plain: dict[str, PlainRoute],
    grpc: GrpcAddress | None = None,
    feed: Feed | None = None,
) -> FastAPI:
    """The application, with its document at /openapi.json and its page at /docs.

    Args:
        context: Of the port.
        extensions: KServe v2's extensions.
        infer: Decodes, runs and encodes KServe v2's inference requests.
        v1: Serves every request below /v1.
        plain: By path, the routes that `WebApp` serves without this application; here they are routes for any other ASGI server.
        grpc: The gRPC port that models' pages show calls for; None: there is none.
        feed: The live view of the console; None: there is no console.
    """
    server = context.engine.server()
    # FastAPI's own pages load their scripts from the internet, which a server's network often does not reach.
    app = FastAPI(
        title=f"{server.name}: KServe v2 inference protocol, TensorFlow Serving's, Adlik's and OpenAI's",
        version=server.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        responses={"default": {"model": ErrorResponse, "description": "Failure"}},
    )

    async def not_found(request: Request, error: Exception) -> Response:
        if is_openai_path(request.scope["path"]):
            return _response(*unserved(request.scope["method"], request.scope["path"]))
        if PREFIX.match(request.scope["path"]):
            # In another case than the declared one, or malformed: both protocols have their own text for that.
            return CodecResponse(v1)
        return _http_error(error)

    app.add_exception_handler(404, not_found)
    app.add_exception_handler(405, not_found)
    app.add_exception_handler(ServingError, _serving_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _defect)
    generate = HttpGenerate(context.engine, context.limits, extensions.http_headers)
    service = KServeService(context.engine, context.limits, extensions)
    routers = [
        _server_router(context, app, plain),
        *KServeRoutes(context, service, infer, generate).routers(),
        page_router(context, grpc),
        *([] if feed is None else [console_router(context, feed, grpc)]),
        openai_router(context, OpenAiService(context.engine, context.limits, extensions.http_headers)),
        shared_router(context, v1),
        tfs_router(context, v1),
        adlik_router(context, v1),
    ]
    for router in routers:
        app.include_router(router)
    return app


def _server_router(context: RouteContext, app: FastAPI, plain: dict[str, PlainRoute]) -> Any:
    router = context.router()

    def add(path: str, route: PlainRoute) -> None:
        async def respond() -> Response:
            status, body, content_type = route.response()
            return Response(body, status, media_type=content_type)

        model = _HEALTH_BODIES.get(path)
        responses: dict[int | str, dict[str, Any]] = {} if model is None else {200: {"model": model}}
        router.add_api_route(
            path, respond, tags=[route.tag], summary=route.summary, responses=responses, response_class=Response, name=path
        )

    for path, route in plain.items():
        add(path, route)

    @router.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return json_response(await run_off_loop(_document, app, context))

    return router


def _document(app: FastAPI, context: RouteContext) -> dict[str, Any]:
    """The OpenAPI document. The first call takes 0.1 s."""
    document = app.openapi()
    document.setdefault("components", {}).setdefault("schemas", {}).update(context.body_schemas)
    return document


async def _serving_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServingError):
        raise error
    return _response(*(openai_errors.error_response if is_openai_path(request.scope["path"]) else error_response)(error))


def _response(status: int, body: bytes, headers: HeaderList) -> Response:
    return Response(body, status, {name.decode(): value.decode() for name, value in headers})


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return await _serving_error(request, rejection_of(error))


def _http_error(error: Any) -> Response:
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", ""):
        # `WebApp` passes HEAD on as GET.
        headers["Allow"] += ", HEAD"
    return Response(error_body(error.detail), error.status_code, headers, media_type=JSON_TYPE)


async def _defect(request: Request, error: Exception) -> Response:
    if not isinstance(error, ClientGone):
        _log.error("%s failed unexpectedly", request.scope["path"], exc_info=error)
    return Response(error_body(INTERNAL_TEXT), 500, media_type=JSON_TYPE)
