"""All that the gRPC port serves, as one table for whichever transport carries it."""

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.protocols.adlik.service import AdlikService, adlik_methods
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.methods import kserve_methods
from stoker.server.protocols.tfs.service import TfsService, tfs_methods
from stoker.server.rpc.health import SERVICE as HEALTH_SERVICE
from stoker.server.rpc.health import Health
from stoker.server.rpc.method import MethodTable, method_table
from stoker.server.rpc.restricted import NO_RESTRICTIONS, restricted


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
