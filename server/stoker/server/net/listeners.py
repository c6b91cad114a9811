"""The listening sockets of a front end: a TCP port, plain or encrypted, a Unix-domain socket, or both.

A Unix-domain socket is made with its final permissions, replaces one that a dead server left, and is removed at the end.
"""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from stoker.server.core.limits import Limits
from stoker.server.net.receiver import Receiver, protocol_factory
from stoker.server.net.settings import SOCKET_MODE
from stoker.server.net.tls.key_ring import KeyRing
from stoker.server.net.tls.listener import TlsListener


class Frontend(Protocol):
    """A server of one protocol."""

    async def start(self) -> int:
        """Binds and begins to serve; returns the real port, 0 if it has none.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """

    async def stop(self, grace_s: float) -> None:
        """Takes no new work; requests in work have `grace_s` seconds to end, then they are cancelled."""


class PortInUse(OSError):
    """Another process listens there.

    Attributes:
        is_socket: On a Unix-domain socket, not on a port.
    """

    def __init__(self, text: str, *, is_socket: bool = False) -> None:
        super().__init__(text)
        self.is_socket = is_socket


def bind(address: str, port: int) -> socket.socket:
    """A TCP socket bound to `address:port` (port 0: any free one), not listening yet.

    Raises:
        PortInUse: the port is taken.
        OSError: the address cannot be bound; the text names it.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise OSError(f"cannot resolve the address '{address}' to listen on: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # Takes over ports in TIME_WAIT only; two listeners on one port stay an error.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} on {address} is in use by another process") from error
        raise OSError(f"cannot listen on {address} port {port}: {error.strerror}") from error
    return listener


#: Bytes of a path in `sockaddr_un`, without the null byte at its end.
MAX_PATH_BYTES: Final = 107
_BACKLOG: Final = 2048
Identity = tuple[int, int, int]
"""Of a file: distinguishes it from others at the same path, now or earlier."""


class UnixSocket:
    """A socket that listens at a path. Confined to: the event loop.

    Attributes:
        sock: The socket.
        path: Its absolute path.
    """

    def __init__(self, path: Path, mode: int) -> None:
        """Binds and listens at once, so that no other server takes it for the socket of a dead one.

        Args:
            path: Of the socket; one whose server is dead is replaced.
            mode: Its permission bits.

        Raises:
            PortInUse: a server listens there. OSError: the path cannot be used; the text gives the reason.
        """
        self.path = path.absolute()
        make_way(self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # On Linux a socket file is created with the mode of its descriptor: other users cannot connect at any moment.
            os.fchmod(self.sock.fileno(), mode)
            self.sock.bind(str(self.path))
            self.path.chmod(mode)
            self.sock.listen(_BACKLOG)
            self.sock.setblocking(False)
        except OSError as error:
            self.sock.close()
            raise OSError(f"cannot listen on {self.path}: {error.strerror}") from error
        self._identity = identity_of(self.path)

    def remove(self) -> None:
        """Removes the file, unless another one has replaced it."""
        remove_if(self.path, self._identity)


def make_way(path: Path) -> None:
    """Removes the socket of a dead server from `path`.

    Raises:
        PortInUse: a live server listens there. OSError: another kind of file is there, or no socket can have the path.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(f"cannot listen on {path}: the path takes {len(os.fsencode(path))} bytes, a socket's takes {MAX_PATH_BYTES} at most")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OSError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(f"cannot listen on {path}: a file that is no socket stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A live server whose queue is full must not delay the start.
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code == errno.ENOENT:
        return
    if code != errno.ECONNREFUSED:
        detail = "" if code in (0, errno.EAGAIN) else f" ({os.strerror(code)})"
        raise PortInUse(f"the socket {path} is in use by another process{detail}", is_socket=True)
    path.unlink(missing_ok=True)


def identity_of(path: Path) -> Identity | None:
    """The identity of the file at `path`; None: there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    # The inode number alone is soon reused; a socket is never written to, so its modification time is that of its creation.
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_if(path: Path, identity: Identity | None) -> None:
    """Removes the file at `path` if it is still the one of that identity."""
    if identity is not None and identity_of(path) == identity:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """The options of a listener beside its address and port.

    Attributes:
        ring: Encrypts the port; None: it is plain. A Unix-domain socket is never encrypted: its permissions restrict access.
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


def bind_all(address: str, port: int, options: ListenOptions) -> tuple[socket.socket | None, UnixSocket | None]:
    """Binds the port and the Unix-domain socket of `options` before either accepts: a start that fails has served no client.

    Raises:
        PortInUse: the port or the socket is in use. OSError: one of them cannot be bound.
    """
    bound = bind(address, port) if options.has_port else None
    try:
        return bound, UnixSocket(options.socket_path, options.socket_mode) if options.socket_path is not None else None
    except OSError:
        if bound is not None:
            bound.close()
        raise


class Listeners:
    """The listening sockets of one server. Confined to: the event loop."""

    def __init__(self, limits: Limits, address: str, port: int, options: ListenOptions) -> None:
        """`address:port` is opened unless the options say otherwise; port 0: any free one."""
        self._limits = limits
        self._address = address
        self._port = port
        self._options = options
        self._servers: list[asyncio.Server] = []
        self._encrypted: TlsListener | None = None
        self._unix: UnixSocket | None = None

    async def open(self, make: Callable[[], Receiver]) -> int:
        """Starts to accept; each connection gets a protocol of `make`. Returns the real port; 0: there is none.

        Raises:
            PortInUse: the port or the socket is in use. OSError: one of them cannot be bound.
        """
        loop, options = asyncio.get_running_loop(), self._options
        factory = protocol_factory(make, loop)
        port, self._unix = bind_all(self._address, self._port, options)
        number = 0
        if port is not None:
            number = int(port.getsockname()[1])
            if options.ring is None:
                self._servers.append(await loop.create_server(factory, sock=port, backlog=_BACKLOG))
            else:
                self._encrypted = TlsListener(port, options.ring, self._limits)
                self._encrypted.open(factory)
        if self._unix is not None:
            self._servers.append(await loop.create_unix_server(factory, sock=self._unix.sock, backlog=_BACKLOG))
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
