"""Flags of the gRPC port's transport. Names and units are Triton's, where Triton has them."""

from dataclasses import dataclass
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, number, one_of
from stoker.server.rpc.settings import GrpcSettings, Transport

_PANEL = "gRPC connections"
_MOST_MS = (1 << 31) - 1
_MS_PER_S = 1000.0


@dataclass(frozen=True, kw_only=True)
class GrpcFlags:
    """What carries gRPC, and what it asks of connections."""

    grpc_front: Annotated[
        Transport, one_of("grpc-front", Transport, panel=_PANEL, text="What carries gRPC: h2 (our own HTTP/2) or grpcio.")
    ] = Transport.H2
    grpc_keepalive_time: Annotated[
        int, number("grpc-keepalive-time", 1, _MOST_MS, panel=_PANEL, text="Milliseconds of silence after which a gRPC client is pinged.")
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int, number("grpc-keepalive-timeout", 1, _MOST_MS, panel=_PANEL, text="Milliseconds it has to answer.")
    ] = 20_000
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int,
        number(
            "grpc-http2-min-recv-ping-interval-without-data",
            0,
            _MOST_MS,
            panel=_PANEL,
            text="Milliseconds between a gRPC client's pings while nothing is sent to it; faster ones are strikes.",
        ),
    ] = 10_000
    grpc_http2_max_ping_strikes: Annotated[
        int, number("grpc-http2-max-ping-strikes", 0, _MOST_MS, panel=_PANEL, text="Strikes before a gRPC connection is ended.")
    ] = 2
    grpc_keepalive_permit_without_calls: Annotated[
        Switch,
        flag("grpc-keepalive-permit-without-calls", panel=_PANEL, text="Connections without a call in work may ping, and are pinged, too."),
    ] = True
    grpc_http2_max_pings_without_data: Annotated[
        int,
        number(
            "grpc-http2-max-pings-without-data",
            0,
            _MOST_MS,
            panel=_PANEL,
            text="Pings in a row to a client that is sent nothing; 0 = without end, as --grpc-front=h2 always has it.",
        ),
    ] = 0
    grpc_max_connection_idle: Annotated[
        int,
        number(
            "grpc-max-connection-idle",
            0,
            _MOST_MS,
            panel=_PANEL,
            text="Milliseconds without a call after which a gRPC connection is drained; 0 = never. Clients connect again by themselves.",
        ),
    ] = 300_000
    grpc_max_connection_age: Annotated[
        int | None,
        number("grpc-max-connection-age", 1, _MOST_MS, panel=_PANEL, text="Milliseconds after which a gRPC connection is drained."),
    ] = None
    grpc_max_connection_age_grace: Annotated[
        int, number("grpc-max-connection-age-grace", 0, _MOST_MS, panel=_PANEL, text="Milliseconds its calls may then go on.")
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
