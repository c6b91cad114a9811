"""Unix-domain sockets to listen on: made with the mode asked for, in place of one that a dead server left, and gone at the end."""

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from stoker.server.net.listen import PortInUse

#: What fits into `sockaddr_un`, without the null byte at its end.
MAX_PATH_BYTES: Final = 107
_BACKLOG: Final = 2048
Identity = tuple[int, int, int]
"""Of a file: tells it from others that stand, or stood, at the same path."""


class UnixSocket:
    """A socket that listens at a path. Confined to: the event loop.

    Attributes:
        sock: The socket.
        path: Where it lies, absolute.
    """

    def __init__(self, path: Path, mode: int) -> None:
        """Binds at once, and listens, so that nobody takes it for the socket of a dead server.

        Args:
            path: Where to; a socket that nobody listens on any more is replaced.
            mode: Its permission bits: who may connect.

        Raises:
            PortInUse: a server listens there. OSError: the path cannot be used; the text says why.
        """
        self.path = path.absolute()
        make_way(self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # On Linux a socket file is born with the mode of its descriptor: there is no moment when others may connect.
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
        """Removes the file, unless somebody has put another one in its place."""
        remove_if(self.path, self._identity)


def make_way(path: Path) -> None:
    """Removes the socket of a dead server from `path`.

    Raises:
        PortInUse: a living server listens there. OSError: something else stands there, or a path that no socket can have.
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
        # A living server whose queue is full must not hold up the start.
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code == errno.ENOENT:
        return
    if code != errno.ECONNREFUSED:
        detail = "" if code in (0, errno.EAGAIN) else f" ({os.strerror(code)})"
        raise PortInUse(f"the socket {path} is in use by another process{detail}", is_socket=True)
    path.unlink(missing_ok=True)


def identity_of(path: Path) -> Identity | None:
    """Tells one file from another at the same path; None: there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    # The number alone is soon given to the next file; a socket is never written to, so its time is that of its birth.
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_if(path: Path, identity: Identity | None) -> None:
    """Removes the file at `path` if it is still the one of that identity."""
    if identity is not None and identity_of(path) == identity:
        path.unlink(missing_ok=True)
