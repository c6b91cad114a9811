"""The address of the gRPC port, which models' pages show calls for."""

from dataclasses import dataclass


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
