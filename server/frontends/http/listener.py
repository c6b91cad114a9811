"""An ASGI app, and beside it the routes of the short path, on a port of our own loop.

uvicorn's own `Server` takes over the process (signals, a main loop, exit codes); here the composition root has these.
"""

import asyncio
import functools
import logging
import socket
import ssl
from typing import Any

from server.frontends.http.connection import HttpConnection
from server.frontends.http.direct import DirectRoutes
from server.frontends.http.port import HttpPort
from server.frontends.limits import Limits
from server.frontends.listen import bind

_SWEEP_PERIOD_S = 0.5
_BACKLOG = 2048
_log = logging.getLogger(__name__)


class HttpListener:
    """Serves on one port, or on any bound socket. Confined to: the event loop."""

    def __init__(
        self,
        app: Any,
        limits: Limits,
        address: str,
        port: int,
        *,
        direct: DirectRoutes | None = None,
        tls: ssl.SSLContext | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        """Listens on `address:port` once started.

        Args:
            app: The ASGI app.
            limits: Bounds on what clients send.
            address: Where to listen.
            port: Where to listen; 0: any free one.
            direct: Routes that do not go through `app`; None: there are none.
            tls: With it, connections are encrypted.
            sock: Bound already, of any family, and listened on instead of `address:port`; closed at the end.
        """
        self._app = app
        self._limits = limits
        self._address = address
        self._port_number = port
        self._direct = direct
        self._tls = tls
        self._sock = sock
        self._port: HttpPort | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> list[HttpConnection]:
        """Those that are open now."""
        return [] if self._port is None else list(self._port.connections)

    async def start(self) -> int:
        """Begins to serve; returns the real port (0 for a socket that has none).

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        listener = self._sock or bind(self._address, self._port_number)
        name = listener.getsockname()
        self._port = HttpPort(self._app, self._limits, self._direct, loop)
        # A client that stalls in the TLS handshake has as long as one that stalls in its first header.
        patience_s = None if self._tls is None else self._limits.header_timeout_s
        make = functools.partial(HttpConnection, self._port)
        self._server = await loop.create_server(
            make, sock=listener, backlog=_BACKLOG, ssl=self._tls, ssl_handshake_timeout=patience_s, ssl_shutdown_timeout=patience_s
        )
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
        return int(name[1]) if isinstance(name, tuple) else 0

    async def stop(self, grace_s: float) -> None:
        """Accepts no more connections and requests; requests in work have `grace_s` seconds to end, then they are cut off."""
        port = self._port
        if self._server is None or self._sweeper is None or port is None:
            return
        self._server.close()
        for connection in self.connections:
            # Idle ones close now, others after the answer they work on; a large answer needs its time to leave.
            connection.shutdown()
        if not await port.emptied(grace_s):
            in_work = sum(connection.is_in_work for connection in self.connections)
            if in_work:
                _log.warning("cutting off %d HTTP requests still in work after %g s", in_work, grace_s)
            for connection in self.connections:
                connection.transport.abort()
            await port.emptied(grace_s)
        if port.tasks:
            await asyncio.wait(list(port.tasks))
        self._sweeper.cancel()
        self._server = self._sweeper = None

    def sweep(self, now_s: float) -> None:
        """Ends connections whose clients are too slow at `now_s` of the loop's clock; runs by itself twice a second."""
        for connection in self.connections:
            connection.sweep(now_s)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep(loop.time())
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
