"""The settings of the listeners: addresses, TLS and Unix-domain sockets, with the flags. Plain data."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from stoker.server.core.flag import BadValue, Panel, duration, option, path, switch

#: Permission bits by default: the server's own user may connect.
SOCKET_MODE: Final = 0o600


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


def _socket_path(given: str) -> Path | None:
    """An empty path means no socket, as in TensorFlow Serving."""
    return None if Path(given) == Path() else Path(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Unix-domain sockets beside the ports, or instead of them.

    Attributes:
        grpc, http: Their paths; None: there is no such socket.
        mode: Permission bits of both.
        allow_tcp: Whether ports are opened.
    """

    grpc: Annotated[
        Path | None,
        path("grpc-socket-path", panel=Panel.NETWORK, parser=_socket_path, text="Also serve gRPC on a Unix-domain socket at this path."),
    ] = None
    http: Annotated[
        Path | None,
        path("http-socket-path", panel=Panel.NETWORK, parser=_socket_path, text="Also serve HTTP on a Unix-domain socket at this path."),
    ] = None
    mode: Annotated[
        int,
        option(
            "socket-mode",
            panel=Panel.NETWORK,
            metavar="OCTAL",
            parser=_permissions,
            text=f"Permissions of both sockets (default {SOCKET_MODE:04o}).",
            show_default=False,
        ),
    ] = SOCKET_MODE
    allow_tcp: Annotated[bool, switch("allow-tcp", panel=Panel.NETWORK, text="Open TCP ports; false: only Unix-domain sockets.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """A certificate and its key in files of their own, as Triton takes them.

    Attributes:
        cert: The server's certificate, followed by the intermediate ones.
        key: Its private key, not encrypted.
        client_ca: The authority of client certificates, which clients must then present. None: clients present none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class SslConfigFile:
    """The TLS files, named in one file: TensorFlow Serving's `SSLConfig` in text format.

    Attributes:
        path: The file.
        parse: Takes its text and name; returns the texts of the certificate, the key and the clients' certificate authority (None: clients
            present no certificate). Raises ServingError: the text is invalid.
    """

    path: Path
    parse: Callable[[str, str], tuple[str, str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of the ports.

    Attributes:
        grpc: The gRPC port's certificate; None: it is plain.
        http: The HTTP port's; None: it is plain.
        reload_s: New connections use the new contents of the files.
    """

    grpc: PemFiles | SslConfigFile | None = None
    http: PemFiles | None = None
    has_metrics: Annotated[
        bool,
        switch("metrics-use-ssl", panel=Panel.TLS, text="Encrypt the metrics port like the HTTP port, including client certificates."),
    ] = False
    reload_s: Annotated[
        float, duration("ssl-reload-secs", 0.1, 86_400, panel=Panel.TLS, text="Interval of the check for changed certificates.")
    ] = 5.0


def is_loopback(address: str) -> bool:
    """Whether `address`, as an operator writes it, is of this machine alone: `localhost`, 127.0.0.0/8 or ::1 (RFC 5735, RFC 4291).

    A name other than `localhost` counts as reachable from elsewhere: what it resolves to may change.
    """
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
