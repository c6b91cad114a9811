"""Flags of Unix-domain sockets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, option, path
from stoker.server.flags.values import BadValue, FlagError
from stoker.server.net.settings import SOCKET_MODE, SocketSettings
from stoker.server.server_config import ServerConfig

_PANEL = "Network"


def _permissions(given: str) -> int:
    """An octal number such as 0660."""
    expected = "permission bits in octal from 0600 to 0777, such as 0660"
    try:
        mode = int(given, 8)
    except ValueError:
        raise BadValue(given, expected) from None
    if not 0o600 <= mode <= 0o777:
        raise BadValue(given, expected)
    return mode


@dataclass(frozen=True, kw_only=True)
class SocketFlags:
    """Sockets beside the ports."""

    grpc_socket_path: Annotated[
        Path | None, path("grpc-socket-path", panel=_PANEL, text="Serve gRPC on a Unix-domain socket there too.")
    ] = None
    http_socket_path: Annotated[
        Path | None, path("http-socket-path", panel=_PANEL, text="Serve HTTP on a Unix-domain socket there too.")
    ] = None
    socket_mode: Annotated[
        int,
        option(
            "socket-mode",
            panel=_PANEL,
            metavar="OCTAL",
            parser=_permissions,
            text=f"Permissions of both sockets (default {SOCKET_MODE:04o}).",
            show_default=False,
        ),
    ] = SOCKET_MODE
    allow_tcp: Annotated[Switch, flag("allow-tcp", panel=_PANEL, text="Open TCP ports; false: sockets alone.")] = True

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: both sockets are one.
        """
        grpc, http = _given(self.grpc_socket_path), _given(self.http_socket_path)
        if grpc is not None and grpc == http:
            raise FlagError("--grpc-socket-path and --http-socket-path are the same: each front needs a socket of its own")
        return {"sockets": SocketSettings(grpc=grpc, http=http, mode=self.socket_mode, allow_tcp=self.allow_tcp)}


def _given(at: Path | None) -> Path | None:
    """An empty path is TensorFlow Serving's word for no socket, which scripts pass on."""
    return None if at is None or at == Path() else at


def check_sockets(config: ServerConfig) -> None:
    """Refuses fronts that would listen nowhere, and sockets of fronts that are off."""
    sockets = config.sockets
    for name, port, path_given in (("grpc", config.grpc_port, sockets.grpc), ("http", config.http_port, sockets.http)):
        if port is None and path_given is not None:
            raise FlagError(f"--{name}-socket-path has no effect with --allow-{name}=false")
        if port is not None and path_given is None and not sockets.allow_tcp:
            raise FlagError(f"--allow-tcp=false leaves {name} nowhere to listen: give --{name}-socket-path, or --allow-{name}=false")
    if not sockets.allow_tcp and not (config.tls.grpc is None and config.tls.http is None):
        raise FlagError("--allow-tcp=false opens no port that TLS could encrypt, and sockets are plain: leave the TLS flags away")
    if config.metrics_port is not None and not sockets.allow_tcp:
        raise FlagError("--metrics-port is a TCP port, and --allow-tcp=false opens none")
