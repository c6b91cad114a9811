"""`DisconnectWatch`: which clients have gone away, of those that send no more and wait for their answer.

A client that shuts down its sending side (`nc -N`, `shutdown(SHUT_WR)`) and one that has closed its socket both send a FIN. They differ in
what follows: the kernel of one that has closed its socket answers the next bytes with a reset. A Unix-domain socket reports the hang-up.
"""

import asyncio
import select
from collections.abc import Callable


class DisconnectWatch:
    """Calls back when a socket is reset or hung up. Confined to: the event loop.

    The event loop watches sockets for bytes to read, and after a FIN a socket is always readable. So these sockets are registered for
    errors alone with an epoll instance, which the event loop watches.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, fd: int, on_disconnect: Callable[[], None]) -> None:
        """Calls `on_disconnect` once the client of the socket `fd` is gone. REQUIRES: `forget` is called before `fd` is closed."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        # An empty event mask: EPOLLERR and EPOLLHUP are always reported.
        self._epoll.register(fd, 0)
        self._calls[fd] = on_disconnect

    def forget(self, fd: int) -> None:
        """The socket is no longer watched; one that is not watched is left alone."""
        if self._calls.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Watches nothing any more."""
        for fd in list(self._calls):
            self.forget(fd)
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        assert self._epoll is not None
        for fd, _ in self._epoll.poll(0):
            on_disconnect = self._calls.get(fd)
            self.forget(fd)
            if on_disconnect is not None:
                on_disconnect()
