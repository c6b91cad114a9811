"""Routes that probes and scrapers ask all day: a GET whose answer takes no reading.

They are answered without FastAPI, which a server that is asked nothing else therefore never loads.
"""

from collections.abc import Callable
from typing import NamedTuple

import orjson

from stoker.server.engine.interface import Engine
from stoker.server.rpc.restricted import Category

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON_TYPE = "application/json"


class PlainResponse(NamedTuple):
    """Status, body and content type."""

    status: int
    body: bytes
    content_type: str


class PlainRoute(NamedTuple):
    """What a path answers.

    Attributes:
        tag, summary: For the API's documentation.
        category: Of restricted APIs.
        response: Makes the answer.
    """

    tag: str
    summary: str
    category: Category
    response: Callable[[], PlainResponse]


def plain_routes(engine: Engine, *, health: bool = True, metrics: bool = True, serving_path: str | None = None) -> dict[str, PlainRoute]:
    """By path, the plain routes of one port.

    Args:
        engine: What is asked.
        health: Whether health is answered.
        metrics: Whether metrics are.
        serving_path: Where metrics are under TensorFlow Serving's names; None: nowhere.
    """
    routes: dict[str, PlainRoute] = {}
    if health:
        routes["/v2/health/live"] = PlainRoute("health", "Liveness", Category.HEALTH, lambda: _said("live", engine.is_live()))
        routes["/v2/health/ready"] = PlainRoute("health", "Readiness", Category.HEALTH, lambda: _said("ready", engine.is_ready()))
    if metrics:
        routes["/metrics"] = PlainRoute("server", "Prometheus metrics", Category.STATISTICS, lambda: _text(engine.metrics_text()))
        if serving_path is not None and serving_path not in routes:
            summary = "Prometheus metrics, TensorFlow Serving's names"
            routes[serving_path] = PlainRoute("server", summary, Category.STATISTICS, lambda: _text(engine.serving_metrics_text()))
    return routes


def _said(key: str, holds: bool) -> PlainResponse:
    return PlainResponse(200 if holds else 400, orjson.dumps({key: holds}), _JSON_TYPE)


def _text(body: bytes) -> PlainResponse:
    return PlainResponse(200, body, METRICS_TYPE)
