"""What all connections of the gRPC port share."""

import asyncio
import logging
import resource
from typing import TYPE_CHECKING

from server.engine.interface import Engine
from server.frontends.h2.limits import H2Limits
from server.frontends.limits import Limits
from server.frontends.rpc.method import MethodTable
from server.frontends.rpc.settings import GrpcSettings

if TYPE_CHECKING:
    from server.frontends.h2.protocol import GrpcProtocol

_WARN_PERIOD_S = 10.0
_log = logging.getLogger(__name__)


class FrontState:
    """Confined to: the event loop.

    Attributes:
        methods: What is served.
        engine: What answers.
        limits: Bounds on what clients send.
        h2_limits: The same for HTTP/2 itself.
        settings: What the operator set.
        loop: The event loop.
        connections: Those that are open.
        calls: How many are in work on all of them.
        is_draining: New connections are turned away.
        all_gone: Set while no connection is open.
    """

    def __init__(
        self, methods: MethodTable, engine: Engine, limits: Limits, settings: GrpcSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.methods = methods
        self.engine = engine
        self.limits = limits
        self.h2_limits = H2Limits.of(limits)
        self.settings = settings
        self.loop = loop
        self.connections: set[GrpcProtocol] = set()
        self.calls = 0
        self.is_draining = False
        self.all_gone = asyncio.Event()
        self.all_gone.set()
        self._most = min(limits.grpc_connections, _files_for_connections())
        self._refused = 0
        self._warned_s: float | None = None

    def admit(self, connection: "GrpcProtocol") -> bool:
        """Notes a new connection; whether it may stay. A warning is logged at most once in ten seconds."""
        if self.is_draining:
            return False
        if len(self.connections) < self._most:
            self.connections.add(connection)
            self.all_gone.clear()
            return True
        now_s = self.loop.time()
        self._refused += 1
        if self._warned_s is None or now_s - self._warned_s >= _WARN_PERIOD_S:
            _log.warning("refusing gRPC connections: %d are open", self._most, extra={"refused": self._refused})
            self._warned_s, self._refused = now_s, 0
        return False

    def leave(self, connection: "GrpcProtocol") -> None:
        """Forgets a connection."""
        self.connections.discard(connection)
        if not self.connections:
            self.all_gone.set()


def _files_for_connections() -> int:
    """A quarter of the files the process may open stays for HTTP, models and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 31) if soft == resource.RLIM_INFINITY else max(1, soft - soft // 4)
