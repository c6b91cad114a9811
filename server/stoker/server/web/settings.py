"""The settings of the HTTP port, and the facts that its pages show of the gRPC port: plain data, no library."""

import enum
from dataclasses import dataclass
from typing import Final


class HttpFront(enum.StrEnum):
    """The HTTP/1.1 server that hosts the application."""

    STOKER = "stoker"
    UVICORN = "uvicorn"


class ConsoleMode(enum.StrEnum):
    """Whether the HTTP port has the console at /ui."""

    AUTO = "auto"
    """If only clients of this machine reach the port."""
    ON = "on"
    OFF = "off"


ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class CorsSettings:
    """Cross-origin resource sharing.

    Attributes:
        origins: The allowed origins, as browsers write them (`https://app.example:8443`); `*` alone: any; none: CORS is off.
    """

    origins: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        """Whether every origin is allowed."""
        return ANY in self.origins

    def allows(self, origin: str) -> bool:
        """Whether pages of `origin` may read responses."""
        return self.is_any or origin in self.origins


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """The gRPC port of this server.

    Attributes:
        port: Its number.
        is_secure: Whether it speaks TLS.
        has_reflection: Whether it offers reflection, which grpcurl needs.
    """

    port: int
    is_secure: bool = False
    has_reflection: bool = False
