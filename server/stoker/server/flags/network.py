"""Flags of listeners that set more or less than one field: addresses, ports, TLS, CORS.

A TLS flag that would have no effect is rejected, so that a port that was meant to be encrypted is never plain by mistake.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.core.flag import FlagError, Panel, number, option, path, switch
from stoker.server.core.limits import Limits
from stoker.server.net.settings import PemFiles, SslConfigFile
from stoker.server.server_config import ServerConfig
from stoker.server.web.settings import ANY, CorsSettings, HttpFront


@dataclass(frozen=True, kw_only=True)
class NetworkFlags:
    """The panel "Network"."""

    address: Annotated[str, option("address", panel=Panel.NETWORK, text="Address for all ports.")] = "127.0.0.1"
    grpc_port: Annotated[
        int, number("grpc-port", 0, 65535, panel=Panel.NETWORK, text="gRPC port; 0 = any free one.", aliases=("port",))
    ] = 8500
    http_port: Annotated[
        int, number("http-port", 0, 65535, panel=Panel.NETWORK, text="HTTP port; 0 = any free one.", aliases=("rest-api-port",))
    ] = 8501
    metrics_port: Annotated[
        int | None, number("metrics-port", 0, 65535, panel=Panel.NETWORK, text="Separate port for /metrics, in addition to the HTTP port.")
    ] = None
    grpc_address: Annotated[
        str | None, option("grpc-address", panel=Panel.NETWORK, text="Address of the gRPC port (default: --address).")
    ] = None
    http_address: Annotated[
        str | None, option("http-address", panel=Panel.NETWORK, text="Address of the HTTP port (default: --address).")
    ] = None
    metrics_address: Annotated[
        str | None, option("metrics-address", panel=Panel.NETWORK, text="Address of the metrics port (default: --address).")
    ] = None
    allow_grpc: Annotated[bool, switch("allow-grpc", panel=Panel.NETWORK, text="Serve gRPC.")] = True
    allow_http: Annotated[bool, switch("allow-http", panel=Panel.NETWORK, text="Serve HTTP.")] = True
    allow_metrics: Annotated[bool, switch("allow-metrics", panel=Panel.NETWORK, text="Serve /metrics.")] = True

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: no frontend is enabled.
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
        }


def check_sockets(config: ServerConfig) -> None:
    """Rejects enabled frontends without a port or socket, and sockets of frontends that are off."""
    sockets = config.sockets
    if sockets.grpc is not None and sockets.grpc == sockets.http:
        raise FlagError("--grpc-socket-path and --http-socket-path are the same: each front needs a socket of its own")
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
    """Rejects limits that the selected HTTP implementation does not enforce."""
    if config.http_front is HttpFront.STOKER:
        return
    for name in _NOT_ON_UVICORN:
        if getattr(config.limits, name) != getattr(Limits(), name):
            raise FlagError(f"--limit={name} has no effect with --http-front={config.http_front}: leave one of them away")


def read_ssl_config(text: str, source: str) -> tuple[str, str, str | None]:
    """Reads the text of an SSLConfig file; see `stoker.server.config.serving_files.read_ssl`, which is imported only if needed."""
    from stoker.server.config.serving_files import read_ssl

    return read_ssl(text, source)


@dataclass(frozen=True, kw_only=True)
class TlsFlags:
    """The panel "TLS"."""

    grpc_use_ssl: Annotated[bool, switch("grpc-use-ssl", panel=Panel.TLS, text="Encrypt the gRPC port.")] = False
    grpc_use_ssl_mutual: Annotated[
        bool, switch("grpc-use-ssl-mutual", panel=Panel.TLS, text="Encrypt the port and require client certificates.")
    ] = False
    grpc_server_cert: Annotated[
        Path | None, path("grpc-server-cert", panel=Panel.TLS, text="The port's certificate chain without the root, PEM.")
    ] = None
    grpc_server_key: Annotated[
        Path | None, path("grpc-server-key", panel=Panel.TLS, text="The private key of that certificate, PEM, not encrypted.")
    ] = None
    grpc_root_cert: Annotated[Path | None, path("grpc-root-cert", panel=Panel.TLS, text="Root certificates of the clients, PEM.")] = None
    http_use_ssl: Annotated[bool, switch("http-use-ssl", panel=Panel.TLS, text="Encrypt the HTTP port.")] = False
    http_use_ssl_mutual: Annotated[
        bool, switch("http-use-ssl-mutual", panel=Panel.TLS, text="Encrypt the port and require client certificates.")
    ] = False
    http_server_cert: Annotated[
        Path | None, path("http-server-cert", panel=Panel.TLS, text="The port's certificate chain without the root, PEM.")
    ] = None
    http_server_key: Annotated[
        Path | None, path("http-server-key", panel=Panel.TLS, text="The private key of that certificate, PEM, not encrypted.")
    ] = None
    http_root_cert: Annotated[Path | None, path("http-root-cert", panel=Panel.TLS, text="Root certificates of the clients, PEM.")] = None
    ssl_config_file: Annotated[
        Path | None, path("ssl-config-file", panel=Panel.TLS, text="TensorFlow Serving's SSLConfig in text format, for the gRPC port.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: flags that require or exclude each other.
        """
        grpc: PemFiles | SslConfigFile | None = _files(
            "grpc", self.grpc_use_ssl, self.grpc_use_ssl_mutual, self.grpc_server_cert, self.grpc_server_key, self.grpc_root_cert
        )
        http = _files("http", self.http_use_ssl, self.http_use_ssl_mutual, self.http_server_cert, self.http_server_key, self.http_root_cert)
        if self.ssl_config_file is not None:
            if grpc is not None:
                raise FlagError("--ssl-config-file and --grpc-use-ssl say both how the gRPC port is encrypted: give one of them")
            grpc = SslConfigFile(self.ssl_config_file, read_ssl_config)
        return {"tls.grpc": grpc, "tls.http": http}


def _files(port: str, is_on: bool, is_mutual: bool, cert: Path | None, key: Path | None, root: Path | None) -> PemFiles | None:
    """The TLS files of one port. As in Triton, the mutual flag alone enables TLS, and root certificates without it have no effect."""
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


def check_tls(config: ServerConfig) -> None:
    """Rejects TLS on the metrics port if the HTTP port has none."""
    if config.tls.has_metrics and config.tls.http is None:
        raise FlagError("--metrics-use-ssl encrypts the metrics port as the HTTP port is: it needs --http-use-ssl")


#: An origin as browsers write it: no path, no user, in lower case.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.\-]*://(?:[a-z0-9_.\-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CorsFlags:
    """The origins of pages that may read responses of the HTTP port."""

    http_cors_allow_origin: Annotated[
        list[str] | None,
        option(
            "http-cors-allow-origin",
            panel=Panel.NETWORK,
            metavar="ORIGIN",
            text="Origins of pages whose scripts may use HTTP, separated by commas; *: any.",
        ),
    ] = None
    rest_api_enable_cors_support: Annotated[
        bool, switch("rest-api-enable-cors-support", panel=Panel.NETWORK, text="TensorFlow Serving's name for --http-cors-allow-origin=*.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: a value is no origin, or stands beside `*`.
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
