"""Where a front listens: its port, plain or encrypted, a Unix-domain socket, or both."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.server.core.limits import Limits
from stoker.server.net.listen import bind
from stoker.server.net.socket_settings import SOCKET_MODE
from stoker.server.net.tls.key_ring import KeyRing
from stoker.server.net.tls.listener import TlsListener
from stoker.server.net.unix_socket import UnixSocket

_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """What a front has beside its address and port.

    Attributes:
        ring: Encrypts the port; None: it is plain. A Unix-domain socket is never encrypted: its permissions say who may connect.
        socket_path: A Unix-domain socket; None: there is none.
        socket_mode: Its permission bits.
        has_port: Whether the port is opened at all.
    """

    ring: KeyRing | None = None
    socket_path: Path | None = None
    socket_mode: int = SOCKET_MODE
    has_port: bool = True


#: A plain port and nothing else.
PLAIN_LISTENER: Final = ListenOptions()


class Listeners:
    """The listening sockets of one front. Confined to: the event loop."""

    def __init__(self, limits: Limits, address: str, port: int, options: ListenOptions) -> None:
        """`address:port` is opened unless the options say otherwise; port 0: any free one."""
        self._limits = limits
        self._address = address
        self._port = port
        self._options = options
        self._servers: list[asyncio.Server] = []
        self._encrypted: TlsListener | None = None
        self._unix: UnixSocket | None = None

    async def open(self, make: Callable[[], asyncio.BaseProtocol]) -> int:
        """Begins to accept; each connection gets a protocol of `make`. Returns the real port; 0 where there is none.

        Raises:
            PortInUse: port or socket are taken. OSError: one of them cannot be bound.
        """
        loop, options = asyncio.get_running_loop(), self._options
        # Both are bound before either accepts: a start that fails has answered nobody.
        port = bind(self._address, self._port) if options.has_port else None
        try:
            if options.socket_path is not None:
                self._unix = UnixSocket(options.socket_path, options.socket_mode)
        except OSError:
            if port is not None:
                port.close()
            raise
        number = 0
        if port is not None:
            number = int(port.getsockname()[1])
            if options.ring is None:
                self._servers.append(await loop.create_server(make, sock=port, backlog=_BACKLOG))
            else:
                self._encrypted = TlsListener(port, options.ring, self._limits)
                self._encrypted.open(make)
        if self._unix is not None:
            self._servers.append(await loop.create_unix_server(make, sock=self._unix.sock, backlog=_BACKLOG))
        return number

    def close(self) -> None:
        """Accepts no more connections."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._encrypted is not None:
            self._encrypted.close()
            self._encrypted = None
        if self._unix is not None:
            self._unix.remove()
            self._unix = None
