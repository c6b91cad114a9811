"""What an operator says of Unix-domain sockets."""

from dataclasses import dataclass
from pathlib import Path


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
    mode: int = 0o600
    allow_tcp: bool = True
