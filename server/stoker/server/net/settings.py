"""What an operator configures of the listening sockets: TLS and Unix-domain sockets. Plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Who may connect unless it is said otherwise: the server's own user.
SOCKET_MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Sockets beside the ports, or instead of them.

    Attributes:
        grpc: Where the gRPC front's lies; None: it has none.
        http: Where the HTTP front's lies.
        mode: Permission bits of both: who may connect.
        allow_tcp: Whether ports are opened at all.
    """

    grpc: Path | None = None
    http: Path | None = None
    mode: int = SOCKET_MODE
    allow_tcp: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """A certificate and its key in files of their own, as Triton takes them.

    Attributes:
        cert: The server's certificate, followed by those between it and the root.
        key: Its private key, not encrypted.
        client_ca: Certificates that sign clients' ones; with it, a client must show one. None: clients show none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class SslConfigFile:
    """All of that in one file, TensorFlow Serving's `SSLConfig` in text format.

    Attributes:
        path: The file.
        parse: Its text and its name, to the texts of the certificate, the key and the clients' certificate authority (None: clients show no
            certificate). Raises ServingError: the text is wrong.
    """

    path: Path
    parse: Callable[[str, str], tuple[str, str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Which ports are encrypted, and with what.

    Attributes:
        grpc: The gRPC port's certificate; None: it is plain.
        http: The HTTP port's; None: it is plain.
        has_metrics: Whether a metrics port of its own is encrypted as the HTTP port is.
        reload_s: Seconds between looks at the files; new connections get what is there then.
    """

    grpc: PemFiles | SslConfigFile | None = None
    http: PemFiles | None = None
    has_metrics: bool = False
    reload_s: float = 5.0
