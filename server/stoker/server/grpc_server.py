"""The gRPC front: one table of methods, on the transport asked for."""

from typing import Protocol

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.grpc_methods import grpc_methods
from stoker.server.net.listeners import PLAIN_LISTENER, ListenOptions
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.adlik.settings import AdlikSettings
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.rpc.settings import GrpcSettings, Transport


class _Server(Protocol):
    """A transport."""

    async def start(self) -> int: ...

    async def stop(self, grace_s: float) -> None: ...


class GrpcFrontend:
    """Serves KServe v2, Adlik's and TensorFlow Serving's services, and `grpc.health.v1.Health`. Confined to: the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        address: str,
        port: int,
        *,
        reflection: bool = False,
        adlik: AdlikService | None = None,
        extensions: Extensions | None = None,
        settings: GrpcSettings | None = None,
        tfs: TfsService | None = None,
        listeners: ListenOptions = PLAIN_LISTENER,
    ) -> None:
        """Listens on `address:port` once started.

        Args:
            engine: Runs the requests.
            limits: Bounds on what clients send.
            address: Where to listen.
            port: Where to listen; 0: any free one.
            reflection: Whether the descriptors are served too.
            adlik: Adlik's services; None: with their default settings.
            extensions: KServe v2's extensions; None: with their default settings.
            settings: The transport and its settings; None: the defaults.
            tfs: TensorFlow Serving's services; None: with their default settings.
            listeners: What else it has: encryption, a Unix-domain socket.
        """
        adlik = adlik or AdlikService(engine, limits, AdlikSettings())
        methods = grpc_methods(engine, limits, adlik=adlik, extensions=extensions, tfs=tfs, reflection=reflection)
        settings = settings or GrpcSettings()
        # Imported as needed: the other transport's library is not loaded.
        self._server: _Server
        if settings.transport is Transport.H2:
            from stoker.server.rpc.http2.server import H2Server

            self._server = H2Server(methods, engine, limits, address, port, settings, listeners)
        else:
            from stoker.server.rpc.grpcio.server import GrpcioServer

            self._server = GrpcioServer(methods, engine, limits, address, port, settings, listeners)

    async def start(self) -> int:
        """Begins to serve; returns the real port.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        return await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those in work have `grace_s` seconds to end, then they are cut off."""
        await self._server.stop(grace_s)
