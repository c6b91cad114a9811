"""The HTTP port as one ASGI application: any ASGI server can host it.

Probes, metrics and `:predict` are served without FastAPI, which the first other request loads. The port's own HTTP/1.1 connection serves
inference by `direct_routes`, without this application; under any other server the routes of the application serve it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from stoker.backends.api.errors import ServingError
from stoker.server.net.http1.asgi import CLIENT_GONE
from stoker.server.net.http1.direct import DirectRoutes, RouteList
from stoker.server.protocols.exchange import (
    INTERNAL_TEXT,
    IS_HEAD,
    ClientGone,
    Receive,
    Scope,
    Send,
    error_body,
    error_response,
    header_of,
    send_response,
)
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.protocols.services import Services
from stoker.server.rpc.restricted import Category, Restrictions, category_below_v1
from stoker.server.web.console.assets import is_asset, send_asset
from stoker.server.web.console.feed import Feed
from stoker.server.web.plain import PlainRoute, plain_routes
from stoker.server.web.settings import GrpcAddress
from stoker.server.web.v1 import PREFIX, HttpV1
from stoker.server.web.v1_exchange import V1Routes

_JSON_HEADERS: Final = ((b"content-type", b"application/json"),)
_log = logging.getLogger(__name__)


class WebApp:
    """The application. It sends the response to every error that no route has handled. Confined to: the event loop.

    HEAD is GET for every route, here and not in the declarations of FastAPI: a route with both methods has one `operationId` for both,
    which OpenAPI forbids, and a second route for each GET makes the application 30 % slower to build. The routes that are served without
    FastAPI need the rule too.
    """

    def __init__(
        self,
        services: Services,
        infer: HttpInfer,
        *,
        metrics: bool = True,
        grpc: GrpcAddress | None = None,
        feed: Feed | None = None,
    ) -> None:
        """The application of one port.

        Args:
            services: The protocols.
            infer: Decodes, runs and encodes KServe v2's inference requests.
            metrics: Whether /metrics is served here too.
            grpc: The gRPC port that models' pages show calls for; None: there is none.
            feed: The live view of the console; None: there is no console.
        """
        engine, limits = services.engine, services.limits
        self._services = services
        self._restrictions = services.extensions.http_restrictions
        self._v1 = HttpV1(engine, limits, services.adlik, services.tfs)
        self._plain = plain_routes(engine, metrics=metrics, serving_path=services.tfs.settings.metrics_path)
        self._infer = infer
        self._grpc = grpc
        self._feed = feed
        self._rest = DeferredApp(self.build_rest_app)

    def direct_routes(self) -> DirectRoutes:
        """The inference routes of every protocol, for the port's own connection."""
        return RouteList((InferRoutes(self._infer, self._restrictions), V1Routes(self._v1.posts, self._restrictions)))

    def build_rest_app(self) -> Any:
        """The FastAPI application of all routes. Safe in a thread."""
        from stoker.server.protocols.routing import RouteContext
        from stoker.server.web.rest_app import rest_app

        # The documentation belongs to no category of restricted APIs: only an API key guards it.
        categories: dict[str, tuple[Category | None, ...]] = dict.fromkeys(("/", "/docs", "/openapi.json"), (None,))
        categories.update({path: (route.category,) for path, route in self._plain.items()})
        context = RouteContext(self._services.engine, self._services.limits, self._restrictions, categories)
        return rest_app(context, self._services.extensions, self._infer, self._respond_below_v1, self._plain, self._grpc, self._feed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _respond_to_lifespan(receive, send)
            return
        client_scope, path = scope, scope["path"]
        if scope["method"] == "HEAD":
            # RFC 9110, 9.3.2: the response is that of GET; the HTTP server omits its body.
            scope = {**scope, "method": "GET", IS_HEAD: True}
        is_direct = True
        try:
            if scope["method"] == "GET" and path in self._plain:
                await send_plain(self._plain[path], self._restrictions, scope, send)
            elif scope["method"] == "GET" and self._feed is not None and is_asset(path):
                await send_asset(scope, send)
            elif scope["method"] == "POST" and PREFIX.match(path) and path.lower().endswith(":predict"):
                await self._respond_below_v1(scope, receive, send)
            else:
                is_direct = False
                await self._rest(scope, receive, send)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if CLIENT_GONE not in client_scope:
                raise
        except Exception:  # noqa: BLE001 - a defect: it is logged, the client gets status 500
            # FastAPI's application has logged its own defects, and sent the response.
            if is_direct:
                _log.exception("%s failed unexpectedly", path)
                await send_response(send, 500, error_body(INTERNAL_TEXT), list(_JSON_HEADERS))

    async def _respond_below_v1(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request below /v1, rejections included."""
        try:
            self._restrictions.require(category_below_v1(scope["path"]), header_of(scope["headers"]))
        except ServingError as error:
            await send_response(send, *error_response(error))
        else:
            await self._v1.respond(scope, receive, send)


class DeferredApp:
    """An ASGI application that its first request builds, in a thread: FastAPI takes a third of a second and 18 MiB.

    Requests that arrive meanwhile wait for it; all others go on. Confined to: the event loop, but for `build`.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        """`build` imports and makes the application; it runs once, in a thread."""
        self._build = build
        self._app: Any = None
        self._building: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            if self._building is None:
                self._building = asyncio.create_task(asyncio.to_thread(self._build))
            # Shielded: a client that disconnects does not end the build for the other requests that wait for it.
            try:
                self._app = await asyncio.shield(self._building)
            except Exception:  # noqa: BLE001 - any error of an import: routes that do not need it go on
                _log.exception("the routes behind FastAPI cannot be loaded")
                await send_response(send, 500, error_body(INTERNAL_TEXT), [(b"content-type", b"application/json")])
                return
        await self._app(scope, receive, send)


class MetricsApp:
    """The application of a port for metrics alone."""

    def __init__(self, routes: Mapping[str, PlainRoute], restrictions: Restrictions) -> None:
        """`restrictions` name the key that a scraper must send."""
        self._routes = routes
        self._restrictions = restrictions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _respond_to_lifespan(receive, send)
            return
        route = self._routes.get(scope["path"])
        if route is None:
            await send_response(send, 404, error_body("Not Found"), list(_JSON_HEADERS))
        elif scope["method"] not in ("GET", "HEAD"):
            await send_response(send, 405, error_body("Method Not Allowed"), [*_JSON_HEADERS, (b"allow", b"GET, HEAD")])
        else:
            await send_plain(route, self._restrictions, scope, send)


async def send_plain(route: PlainRoute, restrictions: Restrictions, scope: Scope, send: Send) -> None:
    """Serves a GET of `route`."""
    try:
        restrictions.require(route.category, header_of(scope["headers"]))
    except ServingError as error:
        await send_response(send, *error_response(error))
    else:
        status, body, content_type = route.response()
        await send_response(send, status, body, [(b"content-type", content_type.encode())])


async def _respond_to_lifespan(receive: Receive, send: Send) -> None:
    """Reports start and end as complete: the composition root starts and stops what the application uses."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
