"""Where the calls on a page go: the address by which the reader reached the page, and the gRPC port beside it."""

import re
from dataclasses import dataclass
from typing import Final

#: What a Host header may be to be shown; anything else is somebody's trick.
_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """The gRPC port of this server.

    Attributes:
        port: Its number.
        is_secure: Whether it speaks TLS.
        has_reflection: Whether it tells its services, which grpcurl needs.
    """

    port: int
    is_secure: bool = False
    has_reflection: bool = False


@dataclass(frozen=True, slots=True)
class CallAddresses:
    """Addresses for calls.

    Attributes:
        http: `host:port` of the HTTP front; the port may be left out.
        is_http_secure: Whether it speaks TLS.
        grpc: `host:port`; None: there is no gRPC port.
        needs_key: Whether calls must bring an API key.
    """

    http: str
    is_http_secure: bool
    grpc: str | None
    is_grpc_secure: bool
    needs_key: bool = False

    @property
    def http_url(self) -> str:
        """With its scheme."""
        return f"{'https' if self.is_http_secure else 'http'}://{self.http}"

    @property
    def grpc_url(self) -> str:
        """With its scheme, as stoker_client takes it."""
        return f"{'grpcs' if self.is_grpc_secure else 'grpc'}://{self.grpc}"


def addresses(host: str, scheme: str, grpc_address: GrpcAddress | None, *, needs_key: bool = False) -> CallAddresses:
    """What follows from a request for the page.

    Args:
        host: Its Host header.
        scheme: How it came: `http` or `https`.
        grpc_address: The gRPC port; None: there is none.
        needs_key: Whether calls must bring an API key.
    """
    known = _HOST.match(host)
    if known is None:
        host, name = "localhost:8501", "localhost"
    else:
        name = known[1]
    return CallAddresses(
        host,
        scheme == "https",
        None if grpc_address is None else f"{name}:{grpc_address.port}",
        grpc_address is not None and grpc_address.is_secure,
        needs_key,
    )
