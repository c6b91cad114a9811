"""All frontends of one server: opened together, stopped together."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stoker.server.endpoints import Endpoint
from stoker.server.engine.interface import Engine, reject_ambiguous
from stoker.server.net.listeners import PLAIN_LISTENER, Frontend, ListenOptions, PortInUse
from stoker.server.net.settings import is_loopback
from stoker.server.net.tls.key_ring import H2, HTTP_1, KeyRing
from stoker.server.observability.history import History
from stoker.server.observability.logs import Logs
from stoker.server.observability.tracer import Tracer
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.services import Services
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.rpc.restricted import Restrictions
from stoker.server.server_config import ServerConfig
from stoker.server.serving_start import metrics_path
from stoker.server.web.settings import ConsoleMode, GrpcAddress


class Frontends:
    """The frontends that the configuration enables."""

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        logs: Logs | None = None,
        tracer: Tracer | None = None,
        history: History | None = None,
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Makes the frontends of `engine`; `logs` and `tracer` are those whose settings clients may change.

        `history` has the samples that the console shows; None: there is no console. `notices` returns what the backends say about the
        loaded models.
        """
        self._engine = engine
        self._logs = logs
        self._tracer = tracer
        self._config = config
        self._history = history
        self._notices = notices
        self._open: list[Frontend] = []
        self._followers: dict[KeyRing, asyncio.Task[None]] = {}

    async def start(self) -> dict[str, Endpoint]:
        """Opens every frontend; returns the endpoints by `grpc`, `http`, `metrics`.

        Raises:
            PortInUse: a port is taken; the text gives the flag that sets it. TlsError: a certificate cannot be used. OSError: an address
                cannot be bound.
        """
        config, engine, limits = self._config, self._engine, self._config.limits
        adlik = AdlikService(engine, limits, config.adlik, config.repositories, config.lifecycle.control_mode)
        tfs = TfsService(engine, limits, dataclasses.replace(config.tfs, metrics_path=metrics_path(config.serving_start)))
        extensions = Extensions(
            limits,
            config.kserve,
            self._logs,
            self._tracer,
            partial(_may_be_traced, engine),
            api_key=config.api_key,
            is_local=is_local_only(config),
        )
        services = Services(engine, limits, adlik=adlik, tfs=tfs, extensions=extensions)
        tls, sockets = config.tls, config.sockets
        endpoints: dict[str, Endpoint] = {}
        # Imported when needed: a server without gRPC, for example, does not load it.
        if config.grpc_port is not None:
            from stoker.server.grpc_server import grpc_server

            ring = KeyRing("gRPC", tls.grpc, H2) if tls.grpc is not None and sockets.allow_tcp else None
            listeners = ListenOptions(ring=ring, socket_path=sockets.grpc, socket_mode=sockets.mode, has_port=sockets.allow_tcp)
            grpc = grpc_server(
                services,
                config.grpc_address,
                config.grpc_port,
                reflection=config.grpc_reflection,
                settings=config.grpc,
                listeners=listeners,
            )
            endpoints["grpc"] = await self._open_one(grpc, config.grpc_address, "--grpc-port", listeners)
        http_ring = KeyRing("HTTP", tls.http, HTTP_1) if tls.http is not None and sockets.allow_tcp else None
        if config.http_port is not None:
            from stoker.server.web.console.feed import Feed
            from stoker.server.web.http_server import http_server

            listeners = ListenOptions(ring=http_ring, socket_path=sockets.http, socket_mode=sockets.mode, has_port=sockets.allow_tcp)
            http = http_server(
                services,
                config.http_address,
                config.http_port,
                metrics=config.metrics_on_http,
                listeners=listeners,
                cors=config.cors,
                grpc=_grpc_address(endpoints.get("grpc"), has_reflection=config.grpc_reflection),
                feed=None if self._history is None else Feed(engine, self._history, config.lifecycle.control_mode, self._notices),
                front=config.http_front,
            )
            endpoints["http"] = await self._open_one(http, config.http_address, "--http-port", listeners)
        if config.metrics_port is not None:
            from stoker.server.web.http_server import metrics_server

            listeners = ListenOptions(ring=http_ring) if tls.has_metrics else PLAIN_LISTENER
            path = tfs.settings.metrics_path
            metrics = metrics_server(
                engine,
                limits,
                config.metrics_address,
                config.metrics_port,
                serving_path=path,
                restrictions=Restrictions(api_key=config.api_key),
                listeners=listeners,
                front=config.http_front,
            )
            endpoints["metrics"] = await self._open_one(metrics, config.metrics_address, "--metrics-port", listeners)
        return endpoints

    async def stop(self, grace_s: float) -> None:
        """Stops all frontends concurrently, so that they share one grace time."""
        await asyncio.gather(*(frontend.stop(grace_s) for frontend in self._open))
        self._open.clear()
        for follower in self._followers.values():
            follower.cancel()
        self._followers.clear()

    async def _open_one(self, frontend: Frontend, address: str, flag: str, listeners: ListenOptions) -> Endpoint:
        try:
            port = await frontend.start()
        except PortInUse as error:
            hint = "" if error.is_socket else f": choose another with {flag}, or 0 for any free one"
            raise PortInUse(f"{error}{hint}") from error
        self._open.append(frontend)
        ring, path = listeners.ring, listeners.socket_path
        if ring is not None and ring not in self._followers:
            self._followers[ring] = asyncio.create_task(ring.follow(self._config.tls.reload_s))
        encryption = "" if ring is None else "mutual TLS" if ring.requires_client_certificate else "TLS"
        return Endpoint(address, port if listeners.has_port else None, None if path is None else path.absolute(), encryption)


def is_local_only(config: ServerConfig) -> bool:
    """Whether only clients of this machine can reach the server."""
    ports = ((config.grpc_port, config.grpc_address), (config.http_port, config.http_address))
    return not config.sockets.allow_tcp or all(port is None or is_loopback(address) for port, address in ports)


def has_console(config: ServerConfig) -> bool:
    """Whether the HTTP port has the console."""
    if config.http_port is None or config.console is ConsoleMode.OFF:
        return False
    return config.console is ConsoleMode.ON or not config.sockets.allow_tcp or is_loopback(config.http_address)


def console_url(config: ServerConfig, endpoints: Mapping[str, Endpoint]) -> str:
    """The address of the console for a browser; empty if there is none, or no port."""
    return f"{endpoints['http'].url}/ui" if has_console(config) and endpoints["http"].url else ""


def _may_be_traced(engine: Engine, model: str) -> bool:
    """Whether a model may have trace settings of its own: it is READY.

    Raises:
        InvalidRequest: several models have this name.
    """
    reject_ambiguous(engine, model)
    return engine.is_model_ready(model, None)


def _grpc_address(endpoint: Endpoint | None, *, has_reflection: bool) -> GrpcAddress | None:
    if endpoint is None or endpoint.port is None:
        return None
    return GrpcAddress(endpoint.port, is_secure=bool(endpoint.encryption), has_reflection=has_reflection)
