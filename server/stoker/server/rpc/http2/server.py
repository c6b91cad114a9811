"""Serves a method table on the server's own HTTP/2 implementation: listens, sweeps, drains."""

import asyncio
import functools
import logging

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.listeners import PLAIN_LISTENER, Listeners, ListenOptions
from stoker.server.net.tls.alerts import wait_closed
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import Connection, ConnectionContext
from stoker.server.rpc.http2.responses import SHUTTING_DOWN
from stoker.server.rpc.method import MethodTable
from stoker.server.rpc.settings import GrpcSettings

_SWEEP_PERIOD_S = 0.5
#: Seconds for the last frames to be sent after all calls have ended.
_CLOSE_S = 0.2
_log = logging.getLogger(__name__)


class H2Server:
    """Serves a table of methods. Confined to: the event loop."""

    def __init__(
        self,
        methods: MethodTable,
        engine: Engine,
        limits: Limits,
        address: str,
        port: int,
        settings: GrpcSettings | None = None,
        listeners: ListenOptions = PLAIN_LISTENER,
    ) -> None:
        """Listens on `address:port` once started (port 0: any free one), and on the sockets of `listeners`."""
        self._methods = methods
        self._engine = engine
        self._limits = limits
        self._settings = settings or GrpcSettings()
        self._listeners = Listeners(limits, address, port, listeners)
        self._state: ConnectionContext | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Begins to serve; returns the real port, 0 if it has none.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        state = ConnectionContext(self._methods, self._engine, self._limits, self._settings, loop)
        port = await self._listeners.open(functools.partial(GrpcProtocol, state))
        self._state = state
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)
        return port

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those in work have `grace_s` seconds to end, then they are cancelled."""
        state = self._state
        if state is None or state.is_draining:
            return
        self._listeners.close()
        state.is_draining = True
        for connection in list(state.connections):
            connection.drain(GoawayReason.SHUTDOWN)
        gone = functools.partial(_within, state=state)
        await wait_closed(gone, lambda: [connection.transport for connection in state.connections], grace_s)
        if state.calls:
            _log.warning("cutting off %d gRPC calls still in work after %g s", state.calls, grace_s)
        for connection in list(state.connections):
            connection.fail_call(SHUTTING_DOWN)
        await _within(_CLOSE_S, state)
        for connection in list(state.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self._state = None

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return [] if self._state is None else list(self._state.connections)

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return 0 if self._state is None else len(self._state.connections)

    def sweep(self, now_s: float) -> None:
        """Enforces timeouts at `now_s` of the loop's clock; a timer calls it twice a second."""
        if self._state is not None:
            for connection in list(self._state.connections):
                connection.sweep(now_s)

    def _sweep_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep(loop.time())
        self._sweeper = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again, loop)


async def _within(timeout_s: float, state: ConnectionContext) -> bool:
    """Waits until all connections are closed, at most `timeout_s` seconds; returns whether they are."""
    try:
        async with asyncio.timeout(timeout_s):
            await state.wait_closed.wait()
    except TimeoutError:
        return False
    return True
