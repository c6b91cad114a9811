"""Detects disconnected clients among those that have ended their sending side and wait for a response.

A client that shuts down its sending side (`nc -N`, `shutdown(SHUT_WR)`) and one that has closed its socket both send a FIN. They differ in
what follows: the kernel of a client that has closed its socket replies to the next bytes with a reset. A Unix-domain socket reports the
hang-up.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final, cast

#: How long a response may take, after the client has ended its side, before the server writes something to see if the client still waits.
_PROBE_DELAY_S: Final = 0.02


class DisconnectWatch:
    """Calls back when a socket is reset or hung up. Confined to: the event loop.

    The event loop watches sockets for bytes to read, and after a FIN a socket is always readable. So these sockets are registered for
    errors alone with an epoll instance, which the event loop watches.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def __len__(self) -> int:
        """How many sockets are watched."""
        return len(self._calls)

    def watch(self, fd: int, on_disconnect: Callable[[], None]) -> None:
        """Calls `on_disconnect` once the client of the socket `fd` has disconnected. REQUIRES: `forget` is called before `fd` is closed."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._poll)
        # An empty event mask: EPOLLERR and EPOLLHUP are always reported.
        self._epoll.register(fd, 0)
        self._calls[fd] = on_disconnect

    def forget(self, fd: int) -> None:
        """Stops watching the socket. No effect on one that is not watched."""
        if self._calls.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stops watching all sockets."""
        for fd in list(self._calls):
            self.forget(fd)
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _poll(self) -> None:
        assert self._epoll is not None
        for fd, _ in self._epoll.poll(0):
            on_disconnect = self._calls.get(fd)
            self.forget(fd)
            if on_disconnect is not None:
                on_disconnect()


class HalfClosedClient:
    """A client that has ended its sending side and waits: its connection is aborted once it is gone. Confined to: the event loop."""

    def __init__(
        self,
        transport: asyncio.Transport,
        watch: DisconnectWatch,
        loop: asyncio.AbstractEventLoop,
        may_probe: Callable[[], bool],
    ) -> None:
        """`may_probe`: whether an interim response may be written, to which the kernel of a disconnected client replies with a reset."""
        self._transport = transport
        self._watch = watch
        self._may_probe = may_probe
        self._fd = _socket(transport).fileno()
        watch.watch(self._fd, transport.abort)
        self._probe = loop.call_later(_PROBE_DELAY_S, self._write_probe) if _is_tcp(transport) else None

    def end(self) -> None:
        """Stops watching. May be called again."""
        self._watch.forget(self._fd)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _write_probe(self) -> None:
        self._probe = None
        if not self._transport.is_closing() and self._may_probe():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def can_detect_disconnect(transport: asyncio.Transport, version: str) -> bool:
    """Whether the server can distinguish a disconnected client from one that has only ended its sending side; `version` is that of HTTP/1.

    It cannot over TLS, where the client's end closes the transport, nor with HTTP/1.0 over TCP, which has no 100 Continue.
    """
    if transport.get_extra_info("ssl_object") is not None:
        return False
    return not _is_tcp(transport) or version != "1.0"


def _is_tcp(transport: asyncio.Transport) -> bool:
    return _socket(transport).family != socket.AF_UNIX


def _socket(transport: asyncio.Transport) -> socket.socket:
    return cast("socket.socket", transport.get_extra_info("socket"))
