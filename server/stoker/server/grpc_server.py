"""The gRPC frontend: the table of its methods, and the server of the selected transport."""

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.listeners import PLAIN_LISTENER, Frontend, ListenOptions
from stoker.server.protocols.adlik.service import AdlikService, adlik_methods
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.methods import kserve_methods
from stoker.server.protocols.settings import AdlikSettings
from stoker.server.protocols.tfs.service import TfsService, tfs_methods
from stoker.server.rpc.health import SERVICE as HEALTH_SERVICE
from stoker.server.rpc.health import Health
from stoker.server.rpc.method import MethodTable, method_table
from stoker.server.rpc.restricted import NO_RESTRICTIONS, restricted
from stoker.server.rpc.settings import GrpcSettings, Transport


def grpc_methods(
    engine: Engine,
    limits: Limits,
    *,
    adlik: AdlikService,
    extensions: Extensions | None = None,
    tfs: TfsService | None = None,
    reflection: bool = False,
) -> MethodTable:
    """KServe v2 with Triton's extensions, Adlik's and TensorFlow Serving's services, health, and reflection where asked for.

    Args:
        engine: Runs the requests.
        limits: Bounds on what clients send.
        adlik: Adlik's services.
        extensions: KServe v2's extensions; None: with their default settings.
        tfs: TensorFlow Serving's services; None: with their default settings.
        reflection: Whether the descriptors are served too.
    """
    serving = tfs_methods(engine, limits, tfs or TfsService(engine, limits))
    served = [*kserve_methods(engine, limits, extensions), *adlik_methods(engine, limits, adlik), *serving]
    services = {method.service for method in served}
    served.extend(Health(engine, limits, frozenset(services)).methods())
    if reflection:
        # Its messages are loaded only where it is on.
        from stoker.server.rpc.reflection import Reflection

        served.extend(Reflection({*services, HEALTH_SERVICE}, limits).methods())
    restrictions = NO_RESTRICTIONS if extensions is None else extensions.grpc_restrictions
    return method_table(restricted(served, restrictions))


def grpc_server(
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
) -> Frontend:
    """A server of `grpc_methods` that listens on `address:port` (port 0: any free one) once started, and wherever `listeners` says.

    Args:
        engine: Runs the requests.
        limits: Bounds on what clients send.
        address: Where to listen.
        port: Where to listen.
        reflection: As `grpc_methods`.
        adlik: As `grpc_methods`; None: with their default settings.
        extensions: As `grpc_methods`.
        settings: The transport and its settings; None: the defaults.
        tfs: As `grpc_methods`.
        listeners: What else it has: encryption, a Unix-domain socket.
    """
    adlik = adlik or AdlikService(engine, limits, AdlikSettings())
    methods = grpc_methods(engine, limits, adlik=adlik, extensions=extensions, tfs=tfs, reflection=reflection)
    settings = settings or GrpcSettings()
    # Imported as needed: the other transport's library is not loaded.
    if settings.transport is Transport.H2:
        from stoker.server.rpc.http2.server import H2Server

        return H2Server(methods, engine, limits, address, port, settings, listeners)
    from stoker.server.rpc.grpcio.server import GrpcioServer

    return GrpcioServer(methods, engine, limits, address, port, settings, listeners)
