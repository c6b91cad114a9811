"""Flags of listeners: addresses, sockets, TLS, CORS and the gRPC transport.

A flag that would have no effect is refused, where it matters: a port that was meant to be encrypted is never plain by mistake.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.core.limits import Limits
from stoker.server.flags.declare import BadValue, FlagError, Switch, flag, number, one_of, option, path, time
from stoker.server.net.settings import SOCKET_MODE, PemFiles, SocketSettings, SslConfigFile, TlsSettings
from stoker.server.rpc.settings import GrpcSettings, Transport
from stoker.server.server_config import ServerConfig
from stoker.server.web.cors_settings import ANY, CorsSettings
from stoker.server.web.settings import HttpFront

_NETWORK = "Network"


@dataclass(frozen=True, kw_only=True)
class NetworkFlags:
    """The panel "Network"."""

    address: Annotated[str, option("address", panel=_NETWORK, text="Address that all ports bind.")] = "127.0.0.1"
    grpc_port: Annotated[int, number("grpc-port", 0, 65535, panel=_NETWORK, text="gRPC port; 0 = any free one.")] = 8500
    http_port: Annotated[int, number("http-port", 0, 65535, panel=_NETWORK, text="HTTP port; 0 = any free one.")] = 8501
    metrics_port: Annotated[
        int | None, number("metrics-port", 0, 65535, panel=_NETWORK, text="A port of its own for /metrics, besides the HTTP port.")
    ] = None
    grpc_address: Annotated[str | None, option("grpc-address", panel=_NETWORK, text="Instead of --address for gRPC.")] = None
    http_address: Annotated[str | None, option("http-address", panel=_NETWORK, text="Instead of --address for HTTP.")] = None
    metrics_address: Annotated[str | None, option("metrics-address", panel=_NETWORK, text="Instead of --address for metrics.")] = None
    allow_grpc: Annotated[Switch, flag("allow-grpc", panel=_NETWORK, text="Serve gRPC.")] = True
    allow_http: Annotated[Switch, flag("allow-http", panel=_NETWORK, text="Serve HTTP.")] = True
    allow_metrics: Annotated[Switch, flag("allow-metrics", panel=_NETWORK, text="Serve /metrics.")] = True
    grpc_reflection: Annotated[Switch, flag("grpc-reflection", panel=_NETWORK, text="Offer gRPC server reflection.")] = False
    http_front: Annotated[
        HttpFront, one_of("http-front", HttpFront, panel=_NETWORK, text="What carries HTTP: stoker (our own HTTP/1.1) or uvicorn.")
    ] = HttpFront.STOKER
    ready_file: Annotated[Path | None, path("ready-file", panel=_NETWORK, text="Write the real addresses there, as JSON, once ready.")] = (
        None
    )

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: nothing is left to serve.
        """
        if not (self.allow_grpc or self.allow_http):
            raise FlagError("--allow-grpc=false and --allow-http=false leave nothing to serve: switch one of them on")
        return {
            "grpc_address": self.grpc_address or self.address,
            "http_address": self.http_address or self.address,
            "metrics_address": self.metrics_address or self.address,
            "grpc_port": self.grpc_port if self.allow_grpc else None,
            "http_port": self.http_port if self.allow_http else None,
            "metrics_port": self.metrics_port if self.allow_metrics else None,
            "metrics_on_http": self.allow_metrics,
            "grpc_reflection": self.grpc_reflection,
            "http_front": self.http_front,
            "ready_file": self.ready_file,
        }


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


@dataclass(frozen=True, kw_only=True)
class SocketFlags:
    """Sockets beside the ports."""

    grpc_socket_path: Annotated[
        Path | None, path("grpc-socket-path", panel=_NETWORK, text="Serve gRPC on a Unix-domain socket there too.")
    ] = None
    http_socket_path: Annotated[
        Path | None, path("http-socket-path", panel=_NETWORK, text="Serve HTTP on a Unix-domain socket there too.")
    ] = None
    socket_mode: Annotated[
        int,
        option(
            "socket-mode",
            panel=_NETWORK,
            metavar="OCTAL",
            parser=_permissions,
            text=f"Permissions of both sockets (default {SOCKET_MODE:04o}).",
            show_default=False,
        ),
    ] = SOCKET_MODE
    allow_tcp: Annotated[Switch, flag("allow-tcp", panel=_NETWORK, text="Open TCP ports; false: sockets alone.")] = True

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: both sockets are one.
        """
        grpc, http = _given(self.grpc_socket_path), _given(self.http_socket_path)
        if grpc is not None and grpc == http:
            raise FlagError("--grpc-socket-path and --http-socket-path are the same: each front needs a socket of its own")
        return {"sockets": SocketSettings(grpc=grpc, http=http, mode=self.socket_mode, allow_tcp=self.allow_tcp)}


def _given(at: Path | None) -> Path | None:
    """An empty path is TensorFlow Serving's word for no socket, which scripts pass on."""
    return None if at is None or at == Path() else at


def check_sockets(config: ServerConfig) -> None:
    """Refuses fronts that would listen nowhere, and sockets of fronts that are off."""
    sockets = config.sockets
    for name, port, path_given in (("grpc", config.grpc_port, sockets.grpc), ("http", config.http_port, sockets.http)):
        if port is None and path_given is not None:
            raise FlagError(f"--{name}-socket-path has no effect with --allow-{name}=false")
        if port is not None and path_given is None and not sockets.allow_tcp:
            raise FlagError(f"--allow-tcp=false leaves {name} nowhere to listen: give --{name}-socket-path, or --allow-{name}=false")
    if not sockets.allow_tcp and not (config.tls.grpc is None and config.tls.http is None):
        raise FlagError("--allow-tcp=false opens no port that TLS could encrypt, and sockets are plain: leave the TLS flags away")
    if config.metrics_port is not None and not sockets.allow_tcp:
        raise FlagError("--metrics-port is a TCP port, and --allow-tcp=false opens none")


#: Limits of HTTP requests that uvicorn has no setting for.
_NOT_ON_UVICORN: Final = ("header_count", "header_timeout_s", "chunk_count")


def check_http_front(config: ServerConfig) -> None:
    """Refuses limits that the server of the HTTP port would not hold."""
    if config.http_front is HttpFront.STOKER:
        return
    for name in _NOT_ON_UVICORN:
        if getattr(config.limits, name) != getattr(Limits(), name):
            raise FlagError(f"--limit={name} has no effect with --http-front={config.http_front}: leave one of them away")


_TLS = "TLS"


def read_ssl_config(text: str, source: str) -> tuple[str, str, str | None]:
    """Reads the text of an SSLConfig file; see `stoker.server.config.serving_files.read_ssl`, which is imported once it is needed."""
    from stoker.server.config.serving_files import read_ssl

    return read_ssl(text, source)


@dataclass(frozen=True, kw_only=True)
class TlsFlags:
    """The panel "TLS"."""

    grpc_use_ssl: Annotated[Switch, flag("grpc-use-ssl", panel=_TLS, text="Encrypt the gRPC port.")] = False
    grpc_use_ssl_mutual: Annotated[
        Switch, flag("grpc-use-ssl-mutual", panel=_TLS, text="Encrypt it, and let in only clients with a certificate.")
    ] = False
    grpc_server_cert: Annotated[
        Path | None, path("grpc-server-cert", panel=_TLS, text="Its certificate and those between it and the root, PEM.")
    ] = None
    grpc_server_key: Annotated[Path | None, path("grpc-server-key", panel=_TLS, text="Its private key, PEM, not encrypted.")] = None
    grpc_root_cert: Annotated[Path | None, path("grpc-root-cert", panel=_TLS, text="What signs its clients' certificates, PEM.")] = None
    http_use_ssl: Annotated[Switch, flag("http-use-ssl", panel=_TLS, text="Encrypt the HTTP port.")] = False
    http_use_ssl_mutual: Annotated[
        Switch, flag("http-use-ssl-mutual", panel=_TLS, text="Encrypt it, and let in only clients with a certificate.")
    ] = False
    http_server_cert: Annotated[
        Path | None, path("http-server-cert", panel=_TLS, text="Its certificate and those between it and the root, PEM.")
    ] = None
    http_server_key: Annotated[Path | None, path("http-server-key", panel=_TLS, text="Its private key, PEM, not encrypted.")] = None
    http_root_cert: Annotated[Path | None, path("http-root-cert", panel=_TLS, text="What signs its clients' certificates, PEM.")] = None
    metrics_use_ssl: Annotated[
        Switch, flag("metrics-use-ssl", panel=_TLS, text="Encrypt the metrics port as the HTTP port is, clients' certificates included.")
    ] = False
    ssl_config_file: Annotated[
        Path | None, path("ssl-config-file", panel=_TLS, text="TensorFlow Serving's SSLConfig in text format, for the gRPC port.")
    ] = None
    ssl_reload_secs: Annotated[
        float, time("ssl-reload-secs", 0.1, 86_400, panel=_TLS, text="Seconds between looks at certificates for changes.")
    ] = 5.0

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: flags that need or exclude each other.
        """
        grpc: PemFiles | SslConfigFile | None = _files(
            "grpc", self.grpc_use_ssl, self.grpc_use_ssl_mutual, self.grpc_server_cert, self.grpc_server_key, self.grpc_root_cert
        )
        http = _files("http", self.http_use_ssl, self.http_use_ssl_mutual, self.http_server_cert, self.http_server_key, self.http_root_cert)
        if self.ssl_config_file is not None:
            if grpc is not None:
                raise FlagError("--ssl-config-file and --grpc-use-ssl say both how the gRPC port is encrypted: give one of them")
            grpc = SslConfigFile(self.ssl_config_file, read_ssl_config)
        if self.metrics_use_ssl and http is None:
            raise FlagError("--metrics-use-ssl encrypts the metrics port as the HTTP port is: it needs --http-use-ssl")
        return {"tls": TlsSettings(grpc=grpc, http=http, has_metrics=self.metrics_use_ssl, reload_s=self.ssl_reload_secs)}


def _files(port: str, is_on: bool, is_mutual: bool, cert: Path | None, key: Path | None, root: Path | None) -> PemFiles | None:
    """What one port is encrypted with. As in Triton, the mutual form is enough by itself, and a root without it has no effect."""
    if not (is_on or is_mutual):
        for name, given in (("server-cert", cert), ("server-key", key), ("root-cert", root)):
            if given is not None:
                raise FlagError(f"--{port}-{name} has no effect without --{port}-use-ssl: the port would be plain")
        return None
    switch = f"--{port}-use-ssl" + ("-mutual" if is_mutual else "")
    if cert is None or key is None:
        raise FlagError(f"{switch} needs --{port}-server-{'cert' if cert is None else 'key'}")
    if is_mutual and root is None:
        raise FlagError(f"{switch} needs --{port}-root-cert: the certificates that sign clients' ones")
    return PemFiles(cert=cert, key=key, client_ca=root if is_mutual else None)


#: As browsers write an origin: no path, no user, everything in lower case.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.\-]*://(?:[a-z0-9_.\-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CorsFlags:
    """Whose pages may read answers of the HTTP port."""

    http_cors_allow_origin: Annotated[
        list[str] | None,
        option(
            "http-cors-allow-origin", panel=_NETWORK, metavar="ORIGIN", text="Pages whose scripts may use HTTP; *: any; several by commas."
        ),
    ] = None
    rest_api_enable_cors_support: Annotated[
        Switch, flag("rest-api-enable-cors-support", panel=_NETWORK, text="TensorFlow Serving's word for --http-cors-allow-origin=*.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: what is no origin, or one beside `*`.
        """
        origins = {each.strip().lower() for given in self.http_cors_allow_origin or () for each in given.split(",")}
        for origin in sorted(origins - {ANY}):
            if not _ORIGIN.fullmatch(origin):
                raise FlagError(f"--http-cors-allow-origin={origin}: expected an origin such as https://app.example:8443, or *")
        if self.rest_api_enable_cors_support:
            origins.add(ANY)
        if ANY in origins and len(origins) > 1:
            raise FlagError("--http-cors-allow-origin: * allows every origin, the others have no effect: give one or the other")
        return {"cors": CorsSettings(frozenset(origins))}


_GRPC = "gRPC connections"
_MOST_MS = (1 << 31) - 1
_MS_PER_S = 1000.0


@dataclass(frozen=True, kw_only=True)
class GrpcFlags:
    """What carries gRPC, and what it asks of connections."""

    grpc_front: Annotated[
        Transport, one_of("grpc-front", Transport, panel=_GRPC, text="What carries gRPC: h2 (our own HTTP/2) or grpcio.")
    ] = Transport.H2
    grpc_keepalive_time: Annotated[
        int, number("grpc-keepalive-time", 1, _MOST_MS, panel=_GRPC, text="Milliseconds of silence after which a gRPC client is pinged.")
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int, number("grpc-keepalive-timeout", 1, _MOST_MS, panel=_GRPC, text="Milliseconds it has to answer.")
    ] = 20_000
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int,
        number(
            "grpc-http2-min-recv-ping-interval-without-data",
            0,
            _MOST_MS,
            panel=_GRPC,
            text="Milliseconds between a gRPC client's pings while nothing is sent to it; faster ones are strikes.",
        ),
    ] = 10_000
    grpc_http2_max_ping_strikes: Annotated[
        int, number("grpc-http2-max-ping-strikes", 0, _MOST_MS, panel=_GRPC, text="Strikes before a gRPC connection is ended.")
    ] = 2
    grpc_keepalive_permit_without_calls: Annotated[
        Switch,
        flag("grpc-keepalive-permit-without-calls", panel=_GRPC, text="Connections without a call in work may ping, and are pinged, too."),
    ] = True
    grpc_http2_max_pings_without_data: Annotated[
        int,
        number(
            "grpc-http2-max-pings-without-data",
            0,
            _MOST_MS,
            panel=_GRPC,
            text="Pings in a row to a client that is sent nothing; 0 = without end, as --grpc-front=h2 always has it.",
        ),
    ] = 0
    grpc_max_connection_idle: Annotated[
        int,
        number(
            "grpc-max-connection-idle",
            0,
            _MOST_MS,
            panel=_GRPC,
            text="Milliseconds without a call after which a gRPC connection is drained; 0 = never. Clients connect again by themselves.",
        ),
    ] = 300_000
    grpc_max_connection_age: Annotated[
        int | None,
        number("grpc-max-connection-age", 1, _MOST_MS, panel=_GRPC, text="Milliseconds after which a gRPC connection is drained."),
    ] = None
    grpc_max_connection_age_grace: Annotated[
        int, number("grpc-max-connection-age-grace", 0, _MOST_MS, panel=_GRPC, text="Milliseconds its calls may then go on.")
    ] = 30_000

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`."""
        age_ms = self.grpc_max_connection_age
        return {
            "grpc": GrpcSettings(
                transport=self.grpc_front,
                keepalive_time_s=self.grpc_keepalive_time / _MS_PER_S,
                keepalive_timeout_s=self.grpc_keepalive_timeout / _MS_PER_S,
                min_ping_interval_s=self.grpc_http2_min_recv_ping_interval_without_data / _MS_PER_S,
                max_ping_strikes=self.grpc_http2_max_ping_strikes,
                permits_pings_without_calls=self.grpc_keepalive_permit_without_calls,
                max_pings_without_data=self.grpc_http2_max_pings_without_data,
                max_connection_idle_s=self.grpc_max_connection_idle / _MS_PER_S or None,
                max_connection_age_s=None if age_ms is None else age_ms / _MS_PER_S,
                max_connection_age_grace_s=self.grpc_max_connection_age_grace / _MS_PER_S,
            )
        }
