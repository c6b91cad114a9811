"""The fronts of one server as one: opened together, stopped together."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from server.engine.interface import Engine
from server.frontends.adlik.service import AdlikService
from server.frontends.adlik.settings import AdlikSettings
from server.frontends.kserve.extensions import Extensions
from server.frontends.listen import PortInUse
from server.frontends.tfs.service import TfsService
from server.observability.logs import Logs
from server.observability.tracer import Tracer
from server.server_config import ServerConfig
from server.serving_start import tfs_settings


class Front(Protocol):
    """A protocol front."""

    async def start(self) -> int:
        """Binds and begins to serve; returns the real port."""

    async def stop(self, grace_s: float) -> None:
        """Takes no new work; what is in work may take `grace_s` more seconds."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a front listens."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Fronts:
    """All fronts the configuration asks for."""

    def __init__(self, engine: Engine, config: ServerConfig, logs: Logs | None = None, tracer: Tracer | None = None) -> None:
        """Fronts of `engine`; `logs` and `tracer` are those whose settings clients may change."""
        self._engine = engine
        self._logs = logs
        self._tracer = tracer
        self._config = config
        self._open: list[Front] = []

    async def start(self) -> dict[str, Endpoint]:
        """Opens every front; returns where each listens, by `grpc`, `http`, `metrics`.

        Raises:
            PortInUse: a port is taken; the text names the flag that sets it. OSError: an address cannot be bound.
        """
        config, engine, limits = self._config, self._engine, self._config.limits
        adlik = AdlikService(engine, limits, _adlik_settings(config))
        tfs = TfsService(engine, limits, tfs_settings(config.serving_start))
        extensions = Extensions(limits, config.kserve, self._logs, self._tracer, lambda model: engine.is_model_ready(model, None))
        endpoints: dict[str, Endpoint] = {}
        # Imported as needed: a server without gRPC, say, does not load it.
        if config.grpc_port is not None:
            from server.frontends.grpc_server import GrpcFront

            grpc = GrpcFront(
                engine,
                limits,
                config.grpc_address,
                config.grpc_port,
                reflection=config.grpc_reflection,
                adlik=adlik,
                extensions=extensions,
                settings=config.grpc,
                tfs=tfs,
            )
            endpoints["grpc"] = await self._open_one(grpc, config.grpc_address, "--grpc-port")
        if config.http_port is not None:
            from server.frontends.http_server import HttpFront

            http = HttpFront(
                engine,
                limits,
                config.http_address,
                config.http_port,
                metrics=config.metrics_on_http,
                adlik=adlik,
                extensions=extensions,
                tfs=tfs,
            )
            endpoints["http"] = await self._open_one(http, config.http_address, "--http-port")
        if config.metrics_port is not None:
            from server.frontends.http_server import MetricsFront

            metrics = MetricsFront(engine, limits, config.metrics_address, config.metrics_port, serving_path=tfs.settings.metrics_path)
            endpoints["metrics"] = await self._open_one(metrics, config.metrics_address, "--metrics-port")
        return endpoints

    async def stop(self, grace_s: float) -> None:
        """Stops them side by side, so that the grace time is one for all."""
        await asyncio.gather(*(front.stop(grace_s) for front in self._open))
        self._open.clear()

    async def _open_one(self, front: Front, address: str, flag: str) -> Endpoint:
        try:
            port = await front.start()
        except PortInUse as error:
            raise PortInUse(f"{error}: choose another with {flag}, or 0 for any free one") from error
        self._open.append(front)
        return Endpoint(address, port)


def _adlik_settings(config: ServerConfig) -> AdlikSettings:
    return AdlikSettings(
        rest_v1=config.rest_v1,
        prefer_adlik=config.prefer_adlik,
        allow_operate=config.allow_model_operate,
        operate_root=config.model_operate_root,
        repositories=config.repositories,
        control_mode=config.control_mode,
    )
