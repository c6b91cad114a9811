"""The routes of models' pages and documents."""

from typing import Final

from fastapi import Request, Response

from stoker.backends.api.errors import ServingError, UnknownModel
from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.engine.interface import Engine
from stoker.server.rpc.status import kserve_status
from stoker.server.web.endpoint import json_response
from stoker.server.web.model_pages.addresses import GrpcAddress, addresses
from stoker.server.web.model_pages.html import POLICY, error_page, list_page, model_page
from stoker.server.web.model_pages.openapi import model_document
from stoker.server.web.model_pages.python_calls import python_calls
from stoker.server.web.model_pages.samples import sample
from stoker.server.web.model_pages.shell_calls import shell_calls
from stoker.server.web.page_policy import page_headers
from stoker.server.web.route_adder import RouteAdder

_VERSION: Final = "/versions/{version}"
_TAG: Final = "models"


class ModelPages:
    """What each model's pages and documents are made of. Confined to: the event loop."""

    def __init__(self, engine: Engine, grpc: GrpcAddress | None, *, needs_key: bool = False) -> None:
        """Pages of the models of `engine`.

        Args:
            engine: What knows the models.
            grpc: The port that calls over gRPC are shown for; None: such calls are left out.
            needs_key: Whether the calls must bring an API key.
        """
        self._needs_key = needs_key
        self._engine = engine
        self._grpc = grpc

    def add_to(self, add: RouteAdder) -> None:
        """Adds all of them. `restricted_apis` counts them among metadata, and the list among the repository's index too."""
        add(_TAG, "GET", "/models", self.models, "Page of all models", None)
        add(_TAG, "GET", "/models/", _without_slash, "Leads to the page of all models", None)
        for path in ("/models/{model}", "/models/{model}" + _VERSION):
            add(_TAG, "GET", path, self.model, "Page of a model: calls to paste", None)
        for path in ("/v2/models/{model}", "/v2/models/{model}" + _VERSION):
            summary = "OpenAPI document of a model"
            add(_TAG, "GET", f"{path}/openapi.json", self.document, summary, None)

    async def models(self, request: Request) -> Response:
        """The page of all models."""
        entries = sorted(self._engine.index(), key=lambda entry: (entry.name, entry.version or 0))
        return _page(list_page(entries))

    async def model(self, request: Request) -> Response:
        """The page of one model, or one that says why there is none."""
        try:
            name, version = _target(request)
            description = self._engine.describe(name, version)
        except ServingError as error:
            up = "../../.." if "version" in request.path_params else ".."
            # As pages have it: what KServe v2 answers for an unknown model, Triton's 400, is for its clients.
            return _page(error_page(up, error.message), 404 if isinstance(error, UnknownModel) else kserve_status(error).http)
        asked = sample(description, version)
        where = addresses(request.headers.get("host", ""), request.url.scheme, self._grpc, needs_key=self._needs_key)
        has_reflection = self._grpc is not None and self._grpc.has_reflection
        calls = [*shell_calls(asked, where, has_reflection=has_reflection), *python_calls(asked, where)]
        return _page(model_page(description, version, calls))

    async def document(self, request: Request) -> Response:
        """The OpenAPI document of one model."""
        name, version = _target(request)
        description = self._engine.describe(name, version)
        return json_response(model_document(description, sample(description, version)))


def _target(request: Request) -> tuple[str, int | None]:
    name = check_model_name(request.path_params["model"])
    return name, parse_version(request.path_params.get("version", ""), name)


async def _without_slash(_request: Request) -> Response:
    # Links on the page are relative: below `/models/` they would lead nowhere.
    return Response(status_code=307, headers={"location": "../models"})


def _page(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html; charset=utf-8", headers=page_headers(POLICY))
