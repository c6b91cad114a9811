"""The settings of a client: address, TLS, credentials, limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from stoker_client.errors import InvalidSetting

#: The largest gRPC message, and Triton's limit, bytes.
MAX_MESSAGE_BYTES = 2**31 - 1

_SECURE = {"grpc": False, "grpcs": True, "http": False, "https": True}
#: A Unix-domain socket: `grpc+unix:///run/stoker.sock`, or gRPC's own `unix:/run/stoker.sock`.
_SOCKET = re.compile(r"(?:(?P<protocol>grpc|http)\+)?unix:(?://)?(?P<path>/.+)", re.DOTALL)
#: Header names and values that both gRPC and httpx accept.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+"), re.compile(r"[ -~]*")
_DEFAULT_PORTS = {"grpc": 8500, "grpcs": 8500, "http": 8501, "https": 8501}


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS material, as paths of PEM files.

    Attributes:
        ca: Certificates to trust instead of the system's; bytes are the PEM text itself.
        cert: This client's certificate chain (mutual TLS); needs `key`.
        key: This client's private key.
        server_name: The name that the server's certificate must have; None: that of the address.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidSetting("TlsConfig takes cert and key together, or neither")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of a server's address.

    Attributes:
        protocol: `grpc` or `http`.
        secure: Whether TLS is used.
        host: Name or address; IPv6 without brackets. `localhost` for a socket.
        port: TCP port; 0 for a socket.
        path: Prefix of every HTTP route, such as `/models` behind a proxy; empty for gRPC.
        socket_path: Absolute path of a Unix-domain socket; empty: the server is at `host:port`.
    """

    protocol: str
    secure: bool
    host: str
    port: int
    path: str = ""
    socket_path: str = ""

    @property
    def authority(self) -> str:
        """`host:port`, IPv6 in brackets; `unix:/path` for a socket, as gRPC writes it."""
        if self.socket_path:
            return f"unix:{self.socket_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address in the form that `parse_url` accepts."""
        return f"{self.protocol}+unix://{self.socket_path}" if self.socket_path else self.origin

    @property
    def origin(self) -> str:
        """The URL without the route. For a Unix-domain socket its host name has no meaning."""
        place = self.host if self.socket_path else self.authority
        return f"{self.protocol}{'s' if self.secure else ''}://{place}{self.path}"


def parse_url(url: str, protocol: str | None = None) -> Endpoint:
    """Parses `grpc://host:port`, `grpcs://`, `http://`, `https://`, `grpc+unix:///path`, `http+unix:///path` or `unix:/path`.

    Args:
        url: The address. A missing port is 8500 for gRPC, 8501 for HTTP.
        protocol: `grpc` or `http`: accept no other, and take a bare `host:port` as this one. A bare `unix:/path` is gRPC's without it.

    Raises:
        InvalidSetting: no address, or one of another protocol.
    """
    socket = _SOCKET.fullmatch(url)
    if socket is not None:
        spoken = socket["protocol"] or protocol or "grpc"
        if protocol is not None and spoken != protocol:
            raise InvalidSetting(f"'{url}' is a {spoken} address; expected a {protocol} one")
        return Endpoint(spoken, False, "localhost", 0, socket_path=socket["path"])
    bare = "://" not in url
    if bare and protocol is None:
        raise InvalidSetting(f"'{url}' does not say the protocol; expected grpc://host:port, grpcs://, http:// or https://")
    try:
        parts = urlsplit(f"{protocol}://{url}" if bare else url)
    except ValueError as error:
        raise InvalidSetting(f"'{url}' is not an address: {error}") from error
    if parts.scheme not in _SECURE:
        raise InvalidSetting(f"'{url}' has the unknown scheme '{parts.scheme}'; expected grpc, grpcs, http or https")
    found = parts.scheme.removesuffix("s")
    if protocol is not None and found != protocol:
        raise InvalidSetting(f"'{url}' is a {found} address; expected a {protocol} one")
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidSetting(f"'{url}' has no usable port: {error}") from error
    path = parts.path.rstrip("/")
    if not parts.hostname or parts.query or parts.fragment or parts.username or (path and found == "grpc"):
        raise InvalidSetting(f"'{url}' is not an address; expected {found}://host:port")
    return Endpoint(found, _SECURE[parts.scheme], parts.hostname, port or _DEFAULT_PORTS[parts.scheme], path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The settings that a transport needs to open a connection.

    Attributes:
        endpoint: The server's address.
        tls: None: plain, or the system's certificates where the endpoint is secure.
        headers: Headers of every call (gRPC: metadata), names in lower case. Never printed: they may contain credentials.
        max_message_bytes: Bound on one message, in each direction.
    """

    endpoint: Endpoint
    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if self.tls is not None and not self.endpoint.secure:
            raise InvalidSetting(f"TLS settings are given, but {self.endpoint.url} is a plain address; use grpcs:// or https://")
        if not 0 < self.max_message_bytes <= MAX_MESSAGE_BYTES:
            raise InvalidSetting(f"max_message_bytes is {self.max_message_bytes}; expected 1 to {MAX_MESSAGE_BYTES}")


def make_connection(
    url: str,
    protocol: str,
    *,
    tls: TlsConfig | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    max_message_bytes: int,
) -> Connection:
    """Combines a client's arguments. The API key is sent as `authorization: Bearer <key>`.

    Raises:
        InvalidSetting: an argument is invalid or contradicts another.
    """
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    if api_key is not None:
        if "authorization" in sent:
            raise InvalidSetting("api_key and an authorization header are both given; expected one of them")
        sent["authorization"] = f"Bearer {api_key}"
    for name, value in sent.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidSetting(f"the header {name[:128]!r} cannot be sent: its name or its value is not of printable ASCII characters")
    return Connection(endpoint=parse_url(url, protocol), tls=tls, headers=sent, max_message_bytes=max_message_bytes)
