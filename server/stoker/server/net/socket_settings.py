"""What an operator says of Unix-domain sockets."""

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
