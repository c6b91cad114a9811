"""The settings of the gRPC port except its limits, with their flags."""

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from stoker.server.core.flag import Panel, milliseconds, number, one_of, switch

_MOST: Final = (1 << 31) - 1


class Transport(enum.StrEnum):
    """The transport implementation of gRPC."""

    H2 = "h2"
    GRPCIO = "grpcio"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """The transport and its keepalive rules. The flags use gRPC's names and milliseconds, the fields use seconds.

    Attributes:
        transport: The server's own HTTP/2, or grpcio's.
        max_pings_without_data: Only the grpcio transport enforces it.
        max_connection_idle_s: None: a connection without a call is never drained.
        max_connection_age_s: None: a connection is never drained for its age.
    """

    transport: Annotated[
        Transport, one_of("grpc-front", Transport, panel=Panel.GRPC, text="gRPC implementation: h2 (built-in HTTP/2) or grpcio.")
    ] = Transport.H2
    keepalive_time_s: Annotated[
        float,
        milliseconds(
            "grpc-keepalive-time", 1, _MOST, panel=Panel.GRPC, text="Milliseconds without data after which the server pings a gRPC client."
        ),
    ] = 7200.0
    keepalive_timeout_s: Annotated[
        float,
        milliseconds("grpc-keepalive-timeout", 1, _MOST, panel=Panel.GRPC, text="Milliseconds for the client to respond to that ping."),
    ] = 20.0
    min_ping_interval_s: Annotated[
        float,
        milliseconds(
            "grpc-http2-min-recv-ping-interval-without-data",
            0,
            _MOST,
            panel=Panel.GRPC,
            text="Milliseconds between a gRPC client's pings while nothing is sent to it; faster ones are strikes.",
        ),
    ] = 10.0
    max_ping_strikes: Annotated[
        int, number("grpc-http2-max-ping-strikes", 0, _MOST, panel=Panel.GRPC, text="Strikes before a gRPC connection is ended.")
    ] = 2
    permits_pings_without_calls: Annotated[
        bool,
        switch(
            "grpc-keepalive-permit-without-calls",
            panel=Panel.GRPC,
            text="Allow and send pings on connections without calls, too.",
        ),
    ] = True
    max_pings_without_data: Annotated[
        int,
        number(
            "grpc-http2-max-pings-without-data",
            0,
            _MOST,
            panel=Panel.GRPC,
            text="Pings in a row to a client that is sent nothing; 0 = without end, as --grpc-front=h2 always has it.",
        ),
    ] = 0
    max_connection_idle_s: Annotated[
        float | None,
        milliseconds(
            "grpc-max-connection-idle",
            0,
            _MOST,
            is_none_at_0=True,
            panel=Panel.GRPC,
            text="Milliseconds without a call after which a gRPC connection is drained; 0 = never. Clients reconnect automatically.",
        ),
    ] = 300.0
    max_connection_age_s: Annotated[
        float | None,
        milliseconds("grpc-max-connection-age", 1, _MOST, panel=Panel.GRPC, text="Milliseconds after which a gRPC connection is drained."),
    ] = None
    max_connection_age_grace_s: Annotated[
        float,
        milliseconds(
            "grpc-max-connection-age-grace",
            0,
            _MOST,
            panel=Panel.GRPC,
            text="Milliseconds for the calls of a drained connection to complete.",
        ),
    ] = 30.0
