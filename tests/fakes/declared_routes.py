"""The routes of the HTTP port, as its FastAPI application declares them."""

from collections.abc import Iterator

from fastapi import FastAPI

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.limits import Limits
from stoker.server.observability.metrics import Metrics
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.services import Services
from stoker.server.web.app import WebApp
from stoker.server.web.console.feed import Feed
from tests.fakes.fake_engine import FakeEngine

#: Pages that the OpenAPI document leaves out.
UNDOCUMENTED = ("/openapi.json", "/docs", "/", "/models/")


def console_feed(engine: FakeEngine) -> Feed:
    """The console's live view of a server without samples."""
    return Feed(engine, Metrics(FakeClock()).history())


def rest_app(engine: FakeEngine) -> FastAPI:
    """The FastAPI application of a port with default settings."""
    limits = Limits()
    app = WebApp(Services(engine, limits), HttpInfer(engine, limits), feed=console_feed(engine))
    built: FastAPI = app.build_rest_app()
    return built


def declared_routes(engine: FakeEngine) -> Iterator[tuple[str, str]]:
    """Method and path of every route."""
    for path in UNDOCUMENTED:
        yield "GET", path
    for path, operations in rest_app(engine).openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path
