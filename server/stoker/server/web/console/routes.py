"""The data routes of the console. Their keys are those of the KServe routes that show the same data."""

from typing import Any

from fastapi import APIRouter, Request, Response

from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.protocols.routing import AnyVersionTarget, CodecResponse, RouteContext, Target, UncheckedTarget, json_response
from stoker.server.web.console.calls import CallsBody, calls_of
from stoker.server.web.console.events import EventStreams
from stoker.server.web.console.feed import Feed
from stoker.server.web.console.model_document import console_document
from stoker.server.web.model_pages.calls import addresses
from stoker.server.web.settings import GrpcAddress


def console_router(context: RouteContext, feed: Feed, grpc: GrpcAddress | None) -> APIRouter:
    """The routes below /ui/api.

    Args:
        context: Of the port.
        feed: The data of the live view.
        grpc: The gRPC port that calls are shown for; None: such calls are left out.
    """
    router, streams = context.router(), EventStreams(feed)

    @router.get("/ui/api/events", summary="State and load of all versions: server-sent events", tags=["console"])
    async def events() -> Response:
        return CodecResponse(streams.respond)

    for path, target in (("/ui/api/models/{model}", UncheckedTarget), ("/ui/api/models/{model}/versions/{version}", AnyVersionTarget)):
        _add_model_routes(router, path, target, context, grpc)
    return router


def _add_model_routes(router: APIRouter, path: str, TargetOfPath: Any, context: RouteContext, grpc: GrpcAddress | None) -> None:  # noqa: N803
    engine = context.engine

    @router.get(path, summary="A version: tensors, labels, configuration with the origin of each value", tags=["console"])
    async def model(target: TargetOfPath) -> Response:
        return json_response(console_document(engine, *_checked(target)))

    @router.post(f"{path}/calls", summary="A request as calls to paste", tags=["console"])
    async def calls(target: TargetOfPath, given: CallsBody, request: Request) -> Response:
        name, version = _checked(target)
        needs_key = context.restrictions.needs_api_key
        where = addresses(request.headers.get("host", ""), request.url.scheme, grpc, needs_key=needs_key)
        has_reflection = grpc is not None and grpc.has_reflection
        return json_response(calls_of(engine.describe(name, version), version, given, where, has_reflection=has_reflection))


def _checked(target: Target) -> tuple[str, int | None]:
    return check_model_name(target.model), parse_version(target.version, target.model)
