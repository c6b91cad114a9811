"""The routes of the HTTP port, as its FastAPI application declares them."""

from collections.abc import Iterator

from fastapi import FastAPI

from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.services import Services
from stoker.server.web.app import WebApp
from tests.fakes.fake_engine import FakeEngine

#: Pages that the OpenAPI document leaves out.
UNDOCUMENTED = ("/openapi.json", "/docs", "/", "/models/")


def rest_app(engine: FakeEngine) -> FastAPI:
    """The FastAPI application of a port with default settings."""
    limits = Limits()
    app = WebApp(Services(engine, limits), HttpInfer(engine, limits))
    built: FastAPI = app.build_rest_app()
    return built


def declared_routes(engine: FakeEngine) -> Iterator[tuple[str, str]]:
    """Method and path of every route."""
    for path in UNDOCUMENTED:
        yield "GET", path
    for path, operations in rest_app(engine).openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path
