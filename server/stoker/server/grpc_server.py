"""The gRPC frontend: its table of methods, and the server of the selected transport."""

from stoker.server.net.listeners import PLAIN_LISTENER, Frontend, ListenOptions
from stoker.server.protocols.adlik.service import adlik_methods
from stoker.server.protocols.kserve.methods import kserve_methods
from stoker.server.protocols.services import Services
from stoker.server.protocols.tfs.service import tfs_methods
from stoker.server.rpc.health import SERVICE as HEALTH_SERVICE
from stoker.server.rpc.health import Health
from stoker.server.rpc.method import MethodTable, method_table
from stoker.server.rpc.restricted import restricted
from stoker.server.rpc.settings import GrpcSettings, Transport


def grpc_methods(services: Services, *, reflection: bool = False) -> MethodTable:
    """KServe v2 with Triton's extensions, Adlik's and TensorFlow Serving's services, health, and (`reflection`) server reflection."""
    engine, limits = services.engine, services.limits
    served = [
        *kserve_methods(engine, limits, services.extensions),
        *adlik_methods(engine, limits, services.adlik),
        *tfs_methods(engine, limits, services.tfs),
    ]
    names = {method.service for method in served}
    served.extend(Health(engine, limits, frozenset(names)).methods())
    if reflection:
        # Its messages are imported only if reflection is on.
        from stoker.server.rpc.reflection import Reflection

        served.extend(Reflection({*names, HEALTH_SERVICE}, limits).methods())
    return method_table(restricted(served, services.extensions.grpc_restrictions))


def grpc_server(
    services: Services,
    address: str,
    port: int,
    *,
    reflection: bool = False,
    settings: GrpcSettings | None = None,
    listeners: ListenOptions = PLAIN_LISTENER,
) -> Frontend:
    """A server of `grpc_methods` on `address:port` (port 0: any free one) and on the `listeners`; it begins to listen when started.

    `settings` select the transport; None: the defaults.
    """
    methods, engine, limits = grpc_methods(services, reflection=reflection), services.engine, services.limits
    settings = settings or GrpcSettings()
    # Imported when needed: the library of the other transport is not loaded.
    if settings.transport is Transport.H2:
        from stoker.server.rpc.http2.server import H2Server

        return H2Server(methods, engine, limits, address, port, settings, listeners)
    from stoker.server.rpc.grpcio.server import GrpcioServer

    return GrpcioServer(methods, engine, limits, address, port, settings, listeners)
