"""What all connections of the gRPC port share."""

import asyncio
from typing import TYPE_CHECKING

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.connection_gate import ConnectionGate, Slot
from stoker.server.net.http2.limits import H2Limits
from stoker.server.rpc.method import MethodTable
from stoker.server.rpc.settings import GrpcSettings

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol

#: What one read takes at most, but for what is read straight to its place.
READ_BYTES = 256 * 1024


class ConnectionContext:
    """Confined to: the event loop.

    Attributes:
        methods: What is served.
        engine: What answers.
        reads: Its reads.
        limits: Bounds on what clients send.
        h2_limits: The same for HTTP/2 itself.
        settings: What the operator set.
        loop: The event loop.
        connections: Those that are open.
        calls: How many are in work on all of them.
        is_draining: New connections are turned away.
        wait_closed: Set while no connection is open.
        buffer: What connections read into: each is done with it before another one reads.
    """

    def __init__(
        self, methods: MethodTable, engine: Engine, limits: Limits, settings: GrpcSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.methods = methods
        self.engine = engine
        self.reads = engine.reads
        self.limits = limits
        self.h2_limits = H2Limits.of(limits)
        self.settings = settings
        self.loop = loop
        self.connections: set[GrpcProtocol] = set()
        self.calls = 0
        self.is_draining = False
        self.wait_closed = asyncio.Event()
        self.wait_closed.set()
        self._gate = ConnectionGate(limits.grpc_connections, "gRPC", limits.connections_per_address)
        self.buffer = memoryview(bytearray(READ_BYTES))

    def admit(self, connection: "GrpcProtocol", address: str | None) -> Slot | None:
        """Notes a new connection from `address`; None: it may not stay."""
        if self.is_draining:
            return None
        slot = self._gate.enter(connection, address, self.loop.time())
        if slot is not None:
            self.connections.add(connection)
            self.wait_closed.clear()
        return slot

    def leave(self, connection: "GrpcProtocol") -> None:
        """Forgets a connection."""
        self.connections.discard(connection)
        self._gate.leave(connection)
        if not self.connections:
            self.wait_closed.set()
