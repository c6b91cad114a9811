"""Flags that say where the server listens, and with which fronts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, number, option, path
from stoker.server.flags.values import FlagError

_PANEL = "Network"


@dataclass(frozen=True, kw_only=True)
class NetworkFlags:
    """The panel "Network"."""

    address: Annotated[str, option("address", panel=_PANEL, text="Address that all ports bind.")] = "127.0.0.1"
    grpc_port: Annotated[int, number("grpc-port", 0, 65535, panel=_PANEL, text="gRPC port; 0 = any free one.")] = 8500
    http_port: Annotated[int, number("http-port", 0, 65535, panel=_PANEL, text="HTTP port; 0 = any free one.")] = 8501
    metrics_port: Annotated[
        int | None, number("metrics-port", 0, 65535, panel=_PANEL, text="A port of its own for /metrics, besides the HTTP port.")
    ] = None
    grpc_address: Annotated[str | None, option("grpc-address", panel=_PANEL, text="Instead of --address for gRPC.")] = None
    http_address: Annotated[str | None, option("http-address", panel=_PANEL, text="Instead of --address for HTTP.")] = None
    metrics_address: Annotated[str | None, option("metrics-address", panel=_PANEL, text="Instead of --address for metrics.")] = None
    allow_grpc: Annotated[Switch, flag("allow-grpc", panel=_PANEL, text="Serve gRPC.")] = True
    allow_http: Annotated[Switch, flag("allow-http", panel=_PANEL, text="Serve HTTP.")] = True
    allow_metrics: Annotated[Switch, flag("allow-metrics", panel=_PANEL, text="Serve /metrics.")] = True
    grpc_reflection: Annotated[Switch, flag("grpc-reflection", panel=_PANEL, text="Offer gRPC server reflection.")] = False
    ready_file: Annotated[Path | None, path("ready-file", panel=_PANEL, text="Write the real addresses there, as JSON, once ready.")] = None

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
            "ready_file": self.ready_file,
        }
