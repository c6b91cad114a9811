"""Flags of encrypted ports: Triton's names, the same for HTTP, and TensorFlow Serving's file.

A flag that would have no effect is refused, where it matters: a port that was meant to be encrypted is never plain by mistake.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, path, time
from stoker.server.flags.values import FlagError
from stoker.server.net.settings import PemFiles, SslConfigFile, TlsSettings

_PANEL = "TLS"


def read_ssl_config(text: str, source: str) -> tuple[str, str, str | None]:
    """Reads the text of an SSLConfig file; see `stoker.server.config.serving_files.read_ssl`, which is imported once it is needed."""
    from stoker.server.config.serving_files import read_ssl

    return read_ssl(text, source)


@dataclass(frozen=True, kw_only=True)
class TlsFlags:
    """The panel "TLS"."""

    grpc_use_ssl: Annotated[Switch, flag("grpc-use-ssl", panel=_PANEL, text="Encrypt the gRPC port.")] = False
    grpc_use_ssl_mutual: Annotated[
        Switch, flag("grpc-use-ssl-mutual", panel=_PANEL, text="Encrypt it, and let in only clients with a certificate.")
    ] = False
    grpc_server_cert: Annotated[
        Path | None, path("grpc-server-cert", panel=_PANEL, text="Its certificate and those between it and the root, PEM.")
    ] = None
    grpc_server_key: Annotated[Path | None, path("grpc-server-key", panel=_PANEL, text="Its private key, PEM, not encrypted.")] = None
    grpc_root_cert: Annotated[Path | None, path("grpc-root-cert", panel=_PANEL, text="What signs its clients' certificates, PEM.")] = None
    http_use_ssl: Annotated[Switch, flag("http-use-ssl", panel=_PANEL, text="Encrypt the HTTP port.")] = False
    http_use_ssl_mutual: Annotated[
        Switch, flag("http-use-ssl-mutual", panel=_PANEL, text="Encrypt it, and let in only clients with a certificate.")
    ] = False
    http_server_cert: Annotated[
        Path | None, path("http-server-cert", panel=_PANEL, text="Its certificate and those between it and the root, PEM.")
    ] = None
    http_server_key: Annotated[Path | None, path("http-server-key", panel=_PANEL, text="Its private key, PEM, not encrypted.")] = None
    http_root_cert: Annotated[Path | None, path("http-root-cert", panel=_PANEL, text="What signs its clients' certificates, PEM.")] = None
    metrics_use_ssl: Annotated[
        Switch, flag("metrics-use-ssl", panel=_PANEL, text="Encrypt the metrics port as the HTTP port is, clients' certificates included.")
    ] = False
    ssl_config_file: Annotated[
        Path | None, path("ssl-config-file", panel=_PANEL, text="TensorFlow Serving's SSLConfig in text format, for the gRPC port.")
    ] = None
    ssl_reload_secs: Annotated[
        float, time("ssl-reload-secs", 0.1, 86_400, panel=_PANEL, text="Seconds between looks at certificates for changes.")
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
