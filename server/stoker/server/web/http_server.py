"""The HTTP servers: one for all protocols, one for metrics alone."""

from collections.abc import Callable
from typing import Any

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.direct import DirectRoutes
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import PLAIN_LISTENER, Frontend, ListenOptions
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import METRICS_PATH
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Restrictions
from stoker.server.web.app import MetricsApp, WebApp
from stoker.server.web.console.feed import Feed
from stoker.server.web.cors import CorsApp, CorsRoutes
from stoker.server.web.plain import is_reserved_path, plain_routes
from stoker.server.web.settings import CorsSettings, GrpcAddress, HttpFront


def http_server(
    services: Services,
    address: str,
    port: int,
    *,
    metrics: bool = True,
    listeners: ListenOptions = PLAIN_LISTENER,
    cors: CorsSettings | None = None,
    grpc: GrpcAddress | None = None,
    feed: Feed | None = None,
    front: HttpFront = HttpFront.STOKER,
) -> Frontend:
    """A server of KServe v2 with Triton's extensions, Adlik's REST routes and TensorFlow Serving's.

    Once started, it listens on `address:port` (port 0: any free one) and on the sockets of `listeners`.

    Args:
        services: The protocols.
        address: Where to listen.
        port: Where to listen.
        metrics: Whether /metrics is served here too.
        listeners: TLS and the Unix-domain socket.
        cors: The web pages whose scripts may read responses; None: none.
        grpc: The gRPC port, which models' pages show calls for; None: there is none.
        feed: The live view of the console; None: there is no console.
        front: The server that hosts the application.
    """
    infer = HttpInfer(services.engine, services.limits, services.extensions)
    web = WebApp(services, infer, metrics=metrics, grpc=grpc, feed=feed)
    app: Any = web
    direct = web.direct_routes()
    if cors is not None and cors.origins:
        app, direct = CorsApp(cors, app), CorsRoutes(cors, direct)
    serving_path = services.tfs.settings.metrics_path

    def is_reserved(path: str) -> bool:
        return is_reserved_path(path) or path == serving_path

    return _hosted(front, app, services.limits, address, port, listeners, is_reserved, direct)


def metrics_server(
    engine: Engine,
    limits: Limits,
    address: str,
    port: int,
    *,
    serving_path: str | None = METRICS_PATH,
    restrictions: Restrictions = NO_RESTRICTIONS,
    listeners: ListenOptions = PLAIN_LISTENER,
    front: HttpFront = HttpFront.STOKER,
) -> Frontend:
    """A server on a separate port that serves only metrics; arguments as for `http_server`.

    At `serving_path` the metrics are under TensorFlow Serving's names; None: there is no such path. `restrictions` name the key that a
    scraper must send.
    """
    app = MetricsApp(plain_routes(engine, health=False, serving_path=serving_path), restrictions)
    return _hosted(front, app, limits, address, port, listeners, lambda _: True)


def _hosted(
    front: HttpFront,
    app: Any,
    limits: Limits,
    address: str,
    port: int,
    listeners: ListenOptions,
    is_reserved: Callable[[str], bool],
    direct: DirectRoutes | None = None,
) -> Frontend:
    if front is HttpFront.STOKER:
        return HttpListener(app, limits, address, port, direct=direct, listeners=listeners, is_reserved=is_reserved)
    # Imported only if it is used.
    from stoker.server.web.uvicorn_front import UvicornServer

    return UvicornServer(app, limits, address, port, listeners)
