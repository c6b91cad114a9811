"""Binding a port, with errors that say what is wrong."""

import errno
import socket


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
