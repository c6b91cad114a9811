"""How routes are added: with what answers them, their documentation, and the key that their category of restricted APIs wants."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.routing import Route

from stoker.server.core.tasks import run_off_loop
from stoker.server.protocols.exchange import header_of
from stoker.server.rpc.restricted import Category, Restrictions, categories_of_route
from stoker.server.web.document import DocumentedRoute, openapi_document
from stoker.server.web.endpoint import json_response

Endpoint = Callable[[Request], Awaitable[Response]]


class DocumentedApp(FastAPI):
    """FastAPI whose routes read their requests themselves, and whose document of them is made when somebody asks for it.

    FastAPI looks into each route that it adds, a millisecond for each, though nobody may ever want the document.

    Attributes:
        documented: What the document tells of.
    """

    def __init__(self, title: str, version: str, restrictions: Restrictions, **settings: Any) -> None:
        """`title` and `version` head the document; `restrictions` are those of the port; `settings` are FastAPI's."""
        # FastAPI's own pages load their scripts from the internet, which a server's network often does not reach; its own route to the
        # document would make that on the loop.
        super().__init__(title=title, version=version, docs_url=None, redoc_url=None, openapi_url=None, **settings)
        self.documented: list[DocumentedRoute] = []
        self._restrictions = restrictions
        self.add_page("/openapi.json", self._respond_with_document)

    def add_page(self, path: str, endpoint: Endpoint) -> None:
        """Adds a page that belongs to no category of restricted APIs and that the document leaves out. Only an API key guards it."""
        self.add_route(path, _guarded(endpoint, None, self._restrictions) if self._restrictions.restricts(None) else endpoint)

    def openapi(self) -> dict[str, Any]:
        """The document. The first time it takes 0.1 s."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self.title, self.version, self.documented)
        return self.openapi_schema

    async def _respond_with_document(self, _request: Request) -> Response:
        return json_response(await run_off_loop(self.openapi))


class RouteAdder:
    """Adds routes with their documentation, path parameters included."""

    def __init__(self, app: DocumentedApp, restrictions: Restrictions) -> None:
        """Adds to `app`; `restrictions` are those of the port."""
        self._app = app
        self._restrictions = restrictions

    def __call__(
        self,
        tag: str,
        method: str,
        path: str,
        endpoint: Endpoint,
        summary: str,
        response: Any,
        body: type[BaseModel] | None = None,
        category: Category | None = None,
    ) -> None:
        """Adds one that `endpoint` answers; what else is said of it is as in `DocumentedRoute`.

        `category` is that of restricted APIs; None: what `categories_of_route` says.

        Raises:
            LookupError: the path has no category.
        """
        # What only a person at an address bar writes is answered, and not worth a second line.
        if not path.endswith("/"):
            description = inspect.cleandoc(endpoint.__doc__ or "")
            self._app.documented.append(
                DocumentedRoute(tag=tag, method=method, path=path, summary=summary, description=description, response=response, body=body)
            )
        for each in categories_of_route(path) if category is None else (category,):
            if self._restrictions.restricts(each):
                endpoint = _guarded(endpoint, each, self._restrictions)
        # With GET, Starlette adds HEAD; the connection leaves the body out.
        self._app.routes.append(Route(path, endpoint, methods=[method]))


def _guarded(endpoint: Endpoint, category: Category | None, restrictions: Restrictions) -> Endpoint:
    async def response(request: Request) -> Response:
        restrictions.require(category, header_of(request.scope["headers"]))
        return await endpoint(request)

    return response
