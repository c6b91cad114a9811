"""Runs an ASGI app on a port of our own loop: uvicorn's connections without uvicorn's server.

uvicorn's own `Server` takes over the process (signals, a main loop, exit codes); here the composition root has these.
"""

import asyncio
import functools
import logging
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from server.frontends.http.gate import ConnectionGate
from server.frontends.http.protocol import BoundedHttpProtocol
from server.frontends.limits import Limits
from server.frontends.listen import bind

_SWEEP_PERIOD_S = 0.5
_DRAIN_PERIOD_S = 0.01
_BACKLOG = 2048
_log = logging.getLogger(__name__)


class HttpListener:
    """Serves one ASGI app on one port. Confined to: the event loop."""

    def __init__(self, app: Any, limits: Limits, address: str, port: int) -> None:
        """Listens on `address:port` once started; port 0: any free one."""
        self._app = app
        self._limits = limits
        self._address = address
        self._port = port
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Begins to serve; returns the real port.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        config = Config(
            self._app,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            # uvicorn only hands it to `call_later`.
            timeout_keep_alive=self._limits.keep_alive_timeout_s,  # type: ignore[arg-type]
        )
        config.load()
        listener = bind(self._address, self._port)
        port = int(listener.getsockname()[1])
        protocol = functools.partial(BoundedHttpProtocol, self._limits, ConnectionGate(self._limits), config, self._state, loop)
        self._server = await loop.create_server(protocol, sock=listener, backlog=_BACKLOG)
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
        return port

    async def stop(self, grace_s: float) -> None:
        """Accepts no more connections and requests; requests in work have `grace_s` seconds to end, then they are cut off."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            # Idle ones close now, others after the answer they work on.
            connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_s)
        if self._state.tasks:
            _log.warning("cutting off %d HTTP requests still in work after %g s", len(self._state.tasks), grace_s)
        else:
            # Answers are written, but large ones are still leaving.
            while self._state.connections and loop.time() < deadline_s:  # noqa: ASYNC110 - uvicorn's set of connections tells nobody
                await asyncio.sleep(_DRAIN_PERIOD_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks))
        self._sweeper.cancel()
        self._server = self._sweeper = None

    def sweep(self, now_s: float) -> None:
        """Ends connections whose clients are too slow at `now_s` of the loop's clock; runs by itself twice a second."""
        for connection in list(self._state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.sweep(now_s)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep(loop.time())
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
