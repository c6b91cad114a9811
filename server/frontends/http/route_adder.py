"""How FastAPI routes are added: with their documentation, and with the key that their category of restricted APIs wants."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from server.frontends.http import schemas
from server.frontends.http.endpoint import JSON_TYPE
from server.frontends.http.exchange import header_of
from server.frontends.restricted import Category, Restrictions, categories_of_route

Endpoint = Callable[[Request], Awaitable[Response]]


class DocumentedApp(FastAPI):
    """FastAPI whose OpenAPI document also holds the schemas of bodies that it does not read itself.

    Attributes:
        body_schemas: By name, what `components/schemas` holds besides.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings` are FastAPI's."""
        super().__init__(**settings)
        self.body_schemas: dict[str, Any] = {}

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document.setdefault("components", {}).setdefault("schemas", {}).update(self.body_schemas)
        return document


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
        """Adds one.

        Args:
            tag: The group that it is shown in.
            method: HTTP's, in upper case.
            path: With its parameters in braces.
            endpoint: What answers.
            summary: What it is for.
            answer: The type of the body of its success; None: nothing is said of it.
            body: The model of what it takes; None: it takes nothing, or nothing is said of it.
            category: Of restricted APIs; None: what `categories_of_route` says.

        Raises:
            LookupError: the path has no category.
        """
        for each in categories_of_route(path) if category is None else (category,):
            if self._restrictions.restricts(each):
                endpoint = _guarded(endpoint, each, self._restrictions)
        documented: dict[str, Any] = {
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", path)
            ]
        }
        if body is not None:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            self._app.body_schemas.update(schema.pop("$defs", {}))
            documented["requestBody"] = {"content": {JSON_TYPE: {"schema": schema}}}
        responses: dict[int | str, dict[str, Any]] = {"default": {"model": schemas.ErrorAnswer, "description": "Failure"}}
        if answer is not None:
            responses[200] = {"model": answer}
        self._app.add_api_route(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            tags=[tag],
            responses=responses,
            openapi_extra=documented,
            response_class=Response,
            name=f"{method} {path}",
            # What only a person at an address bar writes is answered, and not worth a second line.
            include_in_schema=not path.endswith("/"),
        )


def _guarded(endpoint: Endpoint, category: Category, restrictions: Restrictions) -> Endpoint:
    async def answer(request: Request) -> Response:
        restrictions.require(category, header_of(request.scope["headers"]))
        return await endpoint(request)

    return answer
