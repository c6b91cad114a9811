"""The HTTP fronts: one for all protocols, one for metrics alone.

The infer route goes from the connection's bytes to the codec; health, metrics and what lies below /v1 are answered at ASGI level; every
other path goes to FastAPI, which is loaded for the first of them.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

from stoker.backends.api.errors import ServingError
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.asgi import CLIENT_GONE
from stoker.server.net.http1.direct import DirectRoutes
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import PLAIN_LISTENER, ListenOptions
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.adlik.settings import AdlikSettings
from stoker.server.protocols.exchange import (
    INTERNAL_TEXT,
    ClientGone,
    Receive,
    Scope,
    Send,
    error_body,
    error_response,
    header_of,
    send_response,
)
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.protocols.tfs.settings import METRICS_PATH
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Category, Restrictions, category_below_v1
from stoker.server.web.cors import CorsApp, CorsRoutes
from stoker.server.web.cors_settings import CorsSettings
from stoker.server.web.deferred import DeferredApp
from stoker.server.web.model_pages.addresses import GrpcAddress
from stoker.server.web.plain import PlainRoute, plain_routes
from stoker.server.web.reserved_paths import is_reserved_path
from stoker.server.web.v1 import PREFIX, HttpV1

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]{1,18}))?/infer\Z", re.ASCII)
_JSON_HEADERS = ((b"content-type", b"application/json"),)
_log = logging.getLogger(__name__)


class HttpFrontend:
    """Serves KServe v2 with Triton's extensions, Adlik's REST routes and TensorFlow Serving's. Confined to: the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        address: str,
        port: int,
        *,
        metrics: bool = True,
        adlik: AdlikService | None = None,
        extensions: Extensions | None = None,
        tfs: TfsService | None = None,
        listeners: ListenOptions = PLAIN_LISTENER,
        cors: CorsSettings | None = None,
        grpc: GrpcAddress | None = None,
    ) -> None:
        """Listens on `address:port` once started (port 0: any free one).

        Args:
            engine: What answers.
            limits: Bounds on what clients send.
            address: Where to listen.
            port: Where to listen; 0: any free one.
            metrics: Whether /metrics is served here too.
            adlik: Adlik's services; None: with their default settings.
            extensions: KServe v2's extensions; None: with their default settings.
            tfs: TensorFlow Serving's services; None: with their default settings.
            listeners: What else it has: encryption, a Unix-domain socket.
            cors: Which web pages' scripts may read answers; None: none.
            grpc: The gRPC port, which models' pages show calls for; None: there is none.
        """
        extensions = extensions or Extensions(limits)
        infer = HttpInfer(engine, limits, extensions)
        tfs = tfs or TfsService(engine, limits)
        v1 = HttpV1(engine, limits, adlik or AdlikService(engine, limits, AdlikSettings()), tfs)
        serving_path = tfs.settings.metrics_path

        def rest_app() -> Any:
            from stoker.server.web.routes import RestRoutes

            return RestRoutes(engine, limits, infer, v1, extensions, metrics=metrics, serving_path=serving_path, grpc=grpc).app()

        plain = plain_routes(engine, metrics=metrics, serving_path=serving_path)
        app: Any = _Dispatcher(infer, v1, plain, DeferredApp(rest_app), extensions.http_restrictions)
        direct: DirectRoutes = InferRoutes(infer, extensions.http_restrictions)
        if cors is not None and cors.origins:
            app, direct = CorsApp(cors, app), CorsRoutes(cors, direct)
        self._listener = HttpListener(
            app,
            limits,
            address,
            port,
            direct=direct,
            listeners=listeners,
            is_reserved=lambda path: is_reserved_path(path) or path == serving_path,
        )

    async def start(self) -> int:
        """Begins to serve; returns the real port.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        return await self._listener.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new requests; those in work have `grace_s` seconds to end, then they are cut off."""
        await self._listener.stop(grace_s)


class MetricsFrontend:
    """Serves metrics and nothing else, for a port of its own. Confined to: the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        address: str,
        port: int,
        *,
        serving_path: str | None = METRICS_PATH,
        restrictions: Restrictions = NO_RESTRICTIONS,
        listeners: ListenOptions = PLAIN_LISTENER,
    ) -> None:
        """Listens on `address:port` once started; port 0: any free one.

        At `serving_path` the metrics are under TensorFlow Serving's names; None: nowhere. `restrictions` name the key that a scraper
        must bring.
        """
        self._restrictions = restrictions
        self._routes = plain_routes(engine, health=False, serving_path=serving_path)
        # There is nothing else to answer here.
        self._listener = HttpListener(self._respond, limits, address, port, listeners=listeners, is_reserved=lambda _: True)

    async def start(self) -> int:
        """As `HttpFrontend.start`."""
        return await self._listener.start()

    async def stop(self, grace_s: float) -> None:
        """As `HttpFrontend.stop`."""
        await self._listener.stop(grace_s)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"])
        if route is None:
            await send_response(send, 404, error_body("Not Found"), list(_JSON_HEADERS))
        elif scope["method"] not in ("GET", "HEAD"):
            await send_response(send, 405, error_body("Method Not Allowed"), [*_JSON_HEADERS, (b"allow", b"GET, HEAD")])
        else:
            try:
                self._restrictions.require(route.category, header_of(scope["headers"]))
            except ServingError as error:
                await send_response(send, *error_response(error))
            else:
                await _send_plain(send, route)


class _Dispatcher:
    """The ASGI app of `HttpFrontend`: tells the hot routes from all others, and is the last stop of every error."""

    def __init__(
        self, infer: HttpInfer, v1: HttpV1, plain: Mapping[str, PlainRoute], others: DeferredApp, restrictions: Restrictions
    ) -> None:
        self._restrictions = restrictions
        self._plain = plain
        self._infer = infer
        self._v1 = v1
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = _INFER.match(scope["path"]) if scope["method"] == "POST" else None
        plain = self._plain.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        version = None if route is None or route[2] is None else int(route[2])
        is_v1 = route is None and PREFIX.match(scope["path"]) is not None
        try:
            if plain is not None:
                self._restrictions.require(plain.category, header_of(scope["headers"]))
                await _send_plain(send, plain)
                return
            if is_v1 or route is not None:
                category = category_below_v1(scope["path"]) if is_v1 else Category.INFERENCE
                self._restrictions.require(category, header_of(scope["headers"]))
            if is_v1:
                await self._v1.respond(scope, receive, send)
            elif route is None:
                await self._others(scope, receive, send)
            else:
                await self._infer.respond(route[1], version, scope, receive, send)
        except ServingError as error:
            if route is not None:
                self._infer.engine.note_failed(Via.KSERVE_HTTP, error, route[1], version)
            # What is left of the body is read and dropped, up to the cap, so that the client sees the answer and not a reset.
            await send_response(send, *error_response(error))
        except ClientGone:
            return
        except asyncio.CancelledError:
            if CLIENT_GONE not in scope:
                raise
        except Exception:  # noqa: BLE001 - the last stop of any defect: logged, answered 500
            if plain is not None or route is not None or is_v1:
                # FastAPI has logged and answered its own.
                _log.exception("%s failed unexpectedly", scope["path"])
                await send_response(send, 500, error_body(INTERNAL_TEXT), list(_JSON_HEADERS))


async def _send_plain(send: Send, route: PlainRoute) -> None:
    response = route.response()
    await send_response(send, response.status, response.body, [(b"content-type", response.content_type.encode())])
