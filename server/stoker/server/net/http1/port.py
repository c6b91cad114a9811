"""The objects that all connections of one HTTP port share."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from stoker.server.core.limits import Limits
from stoker.server.net.connection_gate import ConnectionGate, GatedConnection
from stoker.server.net.http1.asgi import AsgiApp
from stoker.server.net.http1.direct import DirectRoute, DirectRoutes
from stoker.server.net.http1.disconnect import DisconnectWatch
from stoker.server.net.http1.head import HeadCache, RequestHead

#: Size of the port's shared receive buffer. Large bodies are read into buffers of their own.
READ_BYTES: Final = 64 * 1024


def no_path(_path: str) -> bool:
    """The default: connections in reserved slots serve no path."""
    return False


def no_route(_head: RequestHead) -> None:
    """The default: all requests go to the ASGI application."""


class PortConnection(GatedConnection, Protocol):
    """The port's interface to a connection.

    Attributes:
        transport: Of the connection.
    """

    transport: asyncio.Transport

    @property
    def is_in_work(self) -> bool:
        """Whether a request of this connection waits for its response."""

    def sweep(self, now_s: float) -> None:
        """Ends the connection if its client is slower than the limits allow."""

    def shutdown(self) -> None:
        """Ends the connection now if no request is in work on it, else with the response."""


class HttpPort:
    """State and settings of one port. Confined to: the event loop.

    Attributes:
        app: The ASGI application, for requests without a direct route.
        limits: Bounds on what clients send.
        is_reserved: Whether connections in reserved slots serve a path.
        gate: Bounds the connections.
        disconnects: Watches clients that have ended their side and wait for their response.
        loop: The event loop.
        connections: The open connections.
        heads: The cache of request heads.
        tasks: The tasks of requests in work.
        buffer: Shared receive buffer: a connection copies its bytes before another one reads.
    """

    def __init__(
        self,
        app: AsgiApp,
        limits: Limits,
        direct: DirectRoutes | None,
        loop: asyncio.AbstractEventLoop,
        is_reserved: Callable[[str], bool] = no_path,
    ) -> None:
        self.app = app
        self.is_reserved = is_reserved
        self.limits = limits
        self.gate = ConnectionGate(limits.http_connections, "HTTP", limits.connections_per_address)
        self.loop = loop
        self.disconnects = DisconnectWatch(loop)
        self.connections: set[PortConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.heads: HeadCache[DirectRoute] = HeadCache(limits, no_route if direct is None else direct.find)
        self._empty = asyncio.Event()

    def discard(self, connection: PortConnection) -> None:
        """Forgets a connection that has ended."""
        self.connections.discard(connection)
        self.gate.leave(connection)
        if not self.connections:
            self._empty.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Waits until no connection is left; False if some are after `timeout_s`."""
        self._empty.clear()
        if not self.connections:
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
