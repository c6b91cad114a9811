"""What an operator configures of the listening sockets: TLS and Unix-domain sockets. Plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Permission bits by default: the server's own user may connect.
SOCKET_MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Unix-domain sockets beside the ports, or instead of them.

    Attributes:
        grpc: Path of the gRPC socket; None: there is none.
        http: Path of the HTTP socket; None: there is none.
        mode: Permission bits of both.
        allow_tcp: Whether ports are opened.
    """

    grpc: Path | None = None
    http: Path | None = None
    mode: int = SOCKET_MODE
    allow_tcp: bool = True


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
    """The same in one file, TensorFlow Serving's `SSLConfig` in text format.

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
        has_metrics: Whether a separate metrics port is encrypted as the HTTP port is.
        reload_s: Seconds between checks of the files; new connections use their new contents.
    """

    grpc: PemFiles | SslConfigFile | None = None
    http: PemFiles | None = None
    has_metrics: bool = False
    reload_s: float = 5.0
