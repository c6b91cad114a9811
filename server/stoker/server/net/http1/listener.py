"""The HTTP/1.1 server: an ASGI application and direct routes on a port, a Unix-domain socket, or both.

Unlike an ASGI server's command it neither handles signals nor starts an event loop: these belong to the composition root.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import cast

from stoker.server.core.limits import Limits
from stoker.server.net.http1.asgi import AsgiApp
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.direct import DirectRoutes
from stoker.server.net.http1.port import HttpPort, no_path
from stoker.server.net.listeners import PLAIN_LISTENER, Listeners, ListenOptions
from stoker.server.net.tls.alerts import wait_closed

_SWEEP_PERIOD_S = 0.5
_log = logging.getLogger(__name__)


class HttpListener:
    """Serves on one port, a Unix-domain socket, or both. Confined to: the event loop."""

    def __init__(
        self,
        app: AsgiApp,
        limits: Limits,
        address: str,
        port: int,
        *,
        direct: DirectRoutes | None = None,
        listeners: ListenOptions = PLAIN_LISTENER,
        is_reserved: Callable[[str], bool] = no_path,
    ) -> None:
        """Listens on `address:port` once started.

        Args:
            app: The ASGI application.
            limits: Bounds on what clients send.
            address: Where to listen.
            port: Where to listen; 0: any free one.
            direct: Routes that do not go through `app`; None: there are none.
            listeners: TLS and the Unix-domain socket.
            is_reserved: Whether connections in reserved slots serve a path.
        """
        self._is_reserved = is_reserved
        self._app = app
        self._limits = limits
        self._direct = direct
        self._listeners = Listeners(limits, address, port, listeners)
        self._port: HttpPort | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> list[HttpConnection]:
        """The open connections."""
        return [] if self._port is None else cast("list[HttpConnection]", list(self._port.connections))

    @property
    def half_closed_clients(self) -> int:
        """Clients that have ended their sending side, and whose departure is watched for."""
        return 0 if self._port is None else len(self._port.disconnects)

    async def start(self) -> int:
        """Begins to serve; returns the real port (0 if it has none).

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._port = HttpPort(self._app, self._limits, self._direct, loop, self._is_reserved)
        number = await self._listeners.open(functools.partial(HttpConnection, self._port))
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
        return number

    async def stop(self, grace_s: float) -> None:
        """Accepts no more connections and requests. Requests in flight have `grace_s` seconds to end, then the server aborts them."""
        port = self._port
        if self._sweeper is None or port is None:
            return
        self._listeners.close()
        for connection in self.connections:
            # Idle connections close now, others after the response to their request.
            connection.shutdown()
        if not await wait_closed(port.emptied, lambda: [connection.transport for connection in self.connections], grace_s):
            in_work = sum(connection.is_in_work for connection in self.connections)
            if in_work:
                _log.warning("cutting off %d HTTP requests still in work after %g s", in_work, grace_s)
            for connection in self.connections:
                connection.transport.abort()
            await port.emptied(grace_s)
        if port.tasks:
            await asyncio.wait(list(port.tasks))
        port.disconnects.close()
        self._sweeper.cancel()
        self._sweeper = None

    def sweep(self, now_s: float) -> None:
        """Ends connections whose clients are too slow at `now_s` of the loop's clock; a timer calls it twice a second."""
        for connection in self.connections:
            connection.sweep(now_s)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep(loop.time())
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
