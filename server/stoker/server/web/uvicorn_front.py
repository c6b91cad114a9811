"""An ASGI application on uvicorn: the reference that our own HTTP/1.1 server is compared with, and its replacement in an emergency.

uvicorn runs on the event loop of the composition root and handles no signals. It parses with h11, which shares no code with our parser and
bounds the size of a request's head. uvicorn has no equivalent of these: the connections of one address and the slots reserved for probes;
the times and rates of slow requests and of unread responses; the count of header fields and of chunks; the byte budget of responses until
the client has read them; the response to a client that has ended its sending side; the TLS alert of a failed handshake.
"""

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Generator

import uvicorn

from stoker.server.core.limits import Limits
from stoker.server.net.http1.asgi import CLIENT_GONE, AsgiApp, Message, Receive, Scope, Send
from stoker.server.net.listeners import PLAIN_LISTENER, ListenOptions, UnixSocket, bind_all
from stoker.server.net.tls.key_ring import KeyRing
from stoker.server.net.tls.material import make_context


class UvicornServer:
    """Serves an ASGI application on one port, a Unix-domain socket, or both. Confined to: the event loop."""

    def __init__(self, app: AsgiApp, limits: Limits, address: str, port: int, listeners: ListenOptions = PLAIN_LISTENER) -> None:
        """Listens on `address:port` once started (port 0: any free one), and as `listeners` says."""
        self._app = _CancelledOnDisconnect(app)
        self._limits = limits
        self._address = address
        self._port = port
        self._listeners = listeners
        self._serving: dict[_Server, asyncio.Task[None]] = {}
        self._unix: UnixSocket | None = None

    async def start(self) -> int:
        """Begins to serve; returns the real port, 0 if it has none.

        Raises:
            PortInUse: the port or the socket is in use. OSError: one of them cannot be bound.
        """
        port, self._unix = bind_all(self._address, self._port, self._listeners)
        number = 0
        if port is not None:
            number = int(port.getsockname()[1])
            await self._serve(port, self._listeners.ring)
        if self._unix is not None:
            await self._serve(self._unix.sock, None)
        return number

    async def stop(self, grace_s: float) -> None:
        """Accepts no new requests; those in work have `grace_s` (rounded up to whole seconds) to end, then uvicorn cancels them."""
        if self._unix is not None:
            self._unix.remove()
            self._unix = None
        for server in self._serving:
            server.config.timeout_graceful_shutdown = math.ceil(grace_s)
            server.should_exit = True
        await asyncio.gather(*self._serving.values())
        cancelled = [task for server in self._serving for task in server.server_state.tasks]
        if cancelled:
            await asyncio.wait(cancelled)
        self._serving.clear()

    async def _serve(self, sock: socket.socket, ring: KeyRing | None) -> None:
        """Starts one uvicorn server on `sock`; TLS belongs to a server, and a Unix-domain socket has none."""
        config = _config(self._app, self._limits)
        config.load()
        if ring is not None:
            config.ssl = _context(ring)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        accepting = asyncio.create_task(server.accepting.wait())
        await asyncio.wait((serving, accepting), return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if serving.done():
            serving.result()
        self._serving[server] = serving


class _CancelledOnDisconnect:
    """Cancels the task of a request when its client disconnects, as our own server does: ASGI only reports it to `receive`."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        watch: asyncio.Task[None] | None = None
        is_responded = False

        async def watch_client() -> None:
            # Behind the last piece of the body, `receive` returns when the client disconnects or the response is complete.
            await receive()
            if not is_responded:
                scope[CLIENT_GONE] = True
                task.cancel()

        async def receive_and_watch() -> Message:
            nonlocal watch
            message = await receive()
            if watch is None and message["type"] == "http.request" and not message.get("more_body", False):
                watch = asyncio.create_task(watch_client())
            return message

        async def send_and_note(message: Message) -> None:
            nonlocal is_responded
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                is_responded = True
            await send(message)

        try:
            await self._app(scope, receive_and_watch, send_and_note)
        except asyncio.CancelledError:
            if CLIENT_GONE not in scope:
                raise
        finally:
            if watch is not None:
                watch.cancel()


class _Server(uvicorn.Server):
    """Leaves the signals to the composition root.

    Attributes:
        accepting: Set once the sockets accept connections.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.accepting.set()


def _config(app: AsgiApp, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        http="h11",
        ws="none",
        loop="none",
        lifespan="off",
        # The composition root configures logging. Without `workers`, uvicorn reads the environment.
        log_config=None,
        access_log=False,
        workers=1,
        # A client's X-Forwarded-For is not evidence of its address.
        proxy_headers=False,
        server_header=False,
        # uvicorn counts the connection of the request too.
        limit_concurrency=limits.http_connections + 1,
        timeout_keep_alive=math.ceil(limits.keep_alive_timeout_s),
        h11_max_incomplete_event_size=limits.url_bytes + limits.header_bytes,
    )


def _context(ring: KeyRing) -> ssl.SSLContext:
    """A context that hands each handshake to the ring's present one, so that new connections get a reloaded certificate."""
    context = make_context(ring.material, ring.protocol)

    def use_present(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = ring.context

    context.sni_callback = use_present
    return context
