"""The pages for people: all routes, all models, each model with calls to paste, and each model's OpenAPI document."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from stoker.backends.api.errors import ServingError, UnknownModel
from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.engine.interface import Engine
from stoker.server.protocols.routing import AnyVersionTarget, RouteContext, Target, UncheckedTarget, json_response
from stoker.server.rpc.status import kserve_status
from stoker.server.web.model_pages.calls import addresses, python_calls, shell_calls
from stoker.server.web.model_pages.documents import POLICY, error_page, list_page, model_document, model_page
from stoker.server.web.model_pages.samples import sample
from stoker.server.web.settings import GrpcAddress

_HTML: Final = "text/html; charset=utf-8"
_SCRIPT: Final = (b"<script>", b"</script>")


def page_router(context: RouteContext, grpc: GrpcAddress | None) -> APIRouter:
    """The pages of a port.

    Args:
        context: Of the port.
        grpc: The gRPC port that calls are shown for; None: such calls are left out.
    """
    router, engine = context.router(), context.engine
    add: dict[str, Any] = {"tags": ["models"], "response_class": Response}

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        text, policy = docs_page()
        return Response(text, media_type=_HTML, headers=_page_headers(policy))

    @router.get("/", include_in_schema=False)
    async def to_docs() -> Response:
        # Relative: it is right behind a path prefix, too.
        return Response(status_code=307, headers={"location": "docs"})

    @router.get("/models", summary="Page of all models", **add)
    async def models() -> Response:
        return _page(list_page(sorted(engine.index(), key=lambda entry: (entry.name, entry.version or 0))))

    @router.get("/models/", include_in_schema=False)
    async def to_models() -> Response:
        # Links on the page are relative: below `/models/` they would be broken.
        return Response(status_code=307, headers={"location": "../models"})

    @router.get("/models/{model}", summary="Page of a model: calls to paste", **add)
    async def model(target: UncheckedTarget, request: Request) -> Response:
        return _model_page(context, grpc, target, request, up="..")

    @router.get("/models/{model}/versions/{version}", summary="Page of a model: calls to paste", **add)
    async def model_version(target: AnyVersionTarget, request: Request) -> Response:
        return _model_page(context, grpc, target, request, up="../../..")

    @router.get("/v2/models/{model}/openapi.json", summary="OpenAPI document of a model", tags=["models"])
    async def document(target: UncheckedTarget) -> Response:
        return _document(engine, target)

    @router.get("/v2/models/{model}/versions/{version}/openapi.json", summary="OpenAPI document of a model", tags=["models"])
    async def document_of_version(target: AnyVersionTarget) -> Response:
        return _document(engine, target)

    return router


def _model_page(context: RouteContext, grpc: GrpcAddress | None, target: Target, request: Request, *, up: str) -> Response:
    """The page of one model, or one with the error."""
    try:
        name, version = _checked(target)
        description = context.engine.describe(name, version)
    except ServingError as error:
        # KServe v2's status for an unknown model, Triton's 400, is for its clients; pages use 404.
        return _page(error_page(up, error.message), 404 if isinstance(error, UnknownModel) else kserve_status(error).http)
    example = sample(description, version)
    needs_key = context.restrictions.needs_api_key
    where = addresses(request.headers.get("host", ""), request.url.scheme, grpc, needs_key=needs_key)
    calls = [*shell_calls(example, where, has_reflection=grpc is not None and grpc.has_reflection), *python_calls(example, where)]
    return _page(model_page(description, version, calls))


def _document(engine: Engine, target: Target) -> Response:
    name, version = _checked(target)
    description = engine.describe(name, version)
    return json_response(model_document(description, sample(description, version)))


def _checked(target: Target) -> tuple[str, int | None]:
    return check_model_name(target.model), parse_version(target.version, target.model)


def _page(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type=_HTML, headers=_page_headers(POLICY))


def _page_headers(policy: str) -> dict[str, str]:
    """The headers of a page with the content security policy `policy`: a name that escaped its quotes could do nothing."""
    return {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@cache
def docs_page() -> tuple[bytes, str]:
    """The page of all routes, and its policy: it runs its own script, known by its hash, and calls this server, nothing else."""
    page = files("stoker.server.web").joinpath("pages/api.html").read_bytes()
    script = page.split(_SCRIPT[0], 1)[1].split(_SCRIPT[1], 1)[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return page, (
        f"default-src 'none'; script-src 'sha256-{digest}'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
