"""Routes for probes and scrapers: a GET without a body. They are served without FastAPI, so that such a server never loads it.

`is_reserved_path` lists the paths that are served on a connection in a reserved slot, these among them.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from stoker.server.engine.interface import Engine
from stoker.server.protocols.settings import METRICS_PATH
from stoker.server.rpc.restricted import Category

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON_TYPE = "application/json"
_MODEL: Final = r"/v2/models/[^/]+(?:/versions/[0-9]+)?"
_PATHS: Final = re.compile(
    rf"/v2/health/(?:live|ready)|{_MODEL}/(?:ready|stats|trace/setting)|/v2/models/stats|/metrics|{re.escape(METRICS_PATH)}"
    r"|/v2/repository/.+|/v2/logging|/v2/trace/setting|/v1/models/[^/:]+(?:/versions/[0-9]+|/labels/[^/:]+)?",
)


class PlainResponse(NamedTuple):
    """Status, body and content type."""

    status: int
    body: bytes
    content_type: str


class PlainRoute(NamedTuple):
    """One of the routes.

    Attributes:
        tag, summary: For the API's documentation.
        category: Of restricted APIs.
        response: Makes the response.
    """

    tag: str
    summary: str
    category: Category
    response: Callable[[], PlainResponse]


def plain_routes(engine: Engine, *, health: bool = True, metrics: bool = True, serving_path: str | None = None) -> dict[str, PlainRoute]:
    """By path, the plain routes of one port.

    Args:
        engine: Its state and its metrics are served.
        health: Whether the port serves health.
        metrics: Whether it serves metrics.
        serving_path: The path of the metrics under TensorFlow Serving's names; None: there is none.
    """
    routes: dict[str, PlainRoute] = {}
    if health:
        routes["/v2/health/live"] = PlainRoute("health", "Liveness", Category.HEALTH, lambda: _state("live", engine.is_live()))
        routes["/v2/health/ready"] = PlainRoute("health", "Readiness", Category.HEALTH, lambda: _state("ready", engine.is_ready()))
    if metrics:
        routes["/metrics"] = PlainRoute("server", "Prometheus metrics", Category.STATISTICS, lambda: _text(engine.metrics_text()))
        if serving_path is not None and serving_path not in routes:
            summary = "Prometheus metrics, TensorFlow Serving's names"
            routes[serving_path] = PlainRoute("server", summary, Category.STATISTICS, lambda: _text(engine.serving_metrics_text()))
    return routes


def _state(key: str, holds: bool) -> PlainResponse:
    return PlainResponse(200 if holds else 400, orjson.dumps({key: holds}), _JSON_TYPE)


def _text(body: bytes) -> PlainResponse:
    return PlainResponse(200, body, METRICS_TYPE)


def is_reserved_path(path: str) -> bool:
    """Whether `path`, percent-decoded, is served on a connection in a reserved slot: health, metrics and administration."""
    return _PATHS.fullmatch(path) is not None
