"""How routes are added: with what answers them, their documentation, and the key that their category of restricted APIs wants."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.frontends.http.endpoint import json_response
from server.frontends.http.exchange import header_of
from server.frontends.off_loop import run_off_loop
from server.frontends.restricted import Category, Restrictions, categories_of_route

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedRoute:
    """What the OpenAPI document says of a route.

    Attributes:
        tag: The group that it is shown in.
        method: HTTP's, in upper case.
        path: With its parameters in braces.
        summary: What it is for.
        description: More of it; empty: there is no more.
        answer: The type of the body of its success; None: nothing is said of it.
        body: The model of what it takes; None: it takes nothing, or nothing is said of it.
    """

    tag: str
    method: str
    path: str
    summary: str
    description: str
    answer: Any
    body: type[BaseModel] | None


class DocumentedApp(Starlette):
    """Routes, and at /openapi.json a document of them, which is made when somebody asks for it.

    Attributes:
        documented: What the document tells of.
    """

    def __init__(self, title: str, version: str, **settings: Any) -> None:
        """`title` and `version` head the document; `settings` are Starlette's."""
        super().__init__(**settings)
        self.documented: list[DocumentedRoute] = []
        self._title = title
        self._version = version
        self._document: dict[str, Any] | None = None
        self.add_route("/openapi.json", self._answer_document)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document. The first time it takes 0.2 s."""
        from server.frontends.http.document import openapi_document

        if self._document is None:
            self._document = openapi_document(self._title, self._version, self.documented)
        return self._document

    async def _answer_document(self, _request: Request) -> Response:
        return json_response(await run_off_loop(self.document))


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
        answer: Any,
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
                DocumentedRoute(tag=tag, method=method, path=path, summary=summary, description=description, answer=answer, body=body)
            )
        for each in categories_of_route(path) if category is None else (category,):
            if self._restrictions.restricts(each):
                endpoint = _guarded(endpoint, each, self._restrictions)
        route = Route(path, endpoint, methods=[method])
        # Starlette answers HEAD wherever it answers GET.
        route.methods = {method}
        self._app.routes.append(route)


def _guarded(endpoint: Endpoint, category: Category, restrictions: Restrictions) -> Endpoint:
    async def answer(request: Request) -> Response:
        restrictions.require(category, header_of(request.scope["headers"]))
        return await endpoint(request)

    return answer
