"""The OpenAPI document of an HTTP port, made by FastAPI of what is said of each route."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel

from stoker.server.web import schemas
from stoker.server.web.endpoint import JSON_TYPE

_COMPONENTS = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedRoute:
    """What the OpenAPI document says of a route.

    Attributes:
        tag: The group that it is shown in.
        method: HTTP's, in upper case.
        path: With its parameters in braces.
        summary: What it is for.
        description: More of it; empty: there is no more.
        response: The type of the body of its success; None: nothing is said of it.
        body: The model of what it takes; None: it takes nothing, or nothing is said of it.
    """

    tag: str
    method: str
    path: str
    summary: str
    description: str
    response: Any
    body: type[BaseModel] | None


def openapi_document(title: str, version: str, routes: Iterable[DocumentedRoute]) -> dict[str, Any]:
    """The document of `routes`, with the schemas of bodies, too, which endpoints read themselves."""
    app = FastAPI(title=title, version=version)
    body_schemas: dict[str, Any] = {}
    for route in routes:
        extra: dict[str, Any] = {
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", route.path)
            ]
        }
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template=_COMPONENTS)
            body_schemas.update(schema.pop("$defs", {}))
            extra["requestBody"] = {"content": {JSON_TYPE: {"schema": schema}}}
        responses: dict[int | str, dict[str, Any]] = {"default": {"model": schemas.ErrorResponse, "description": "Failure"}}
        if route.response is not None:
            responses[200] = {"model": route.response}
        app.add_api_route(
            route.path,
            _handled_elsewhere,
            methods=[route.method],
            summary=route.summary,
            description=route.description,
            tags=[route.tag],
            responses=responses,
            openapi_extra=extra,
            response_class=Response,
            name=f"{route.method} {route.path}",
        )
    document = app.openapi()
    document.setdefault("components", {}).setdefault("schemas", {}).update(body_schemas)
    return document


async def _handled_elsewhere() -> None:
    # No docstring: FastAPI would show it for routes that have none.
    return None
