"""What an operator says of encrypted ports: plain data, no library."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
