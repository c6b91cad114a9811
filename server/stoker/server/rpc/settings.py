"""What an operator sets of the gRPC port beside its bounds."""

import enum
from dataclasses import dataclass


class Transport(enum.StrEnum):
    """What carries gRPC."""

    H2 = "h2"
    GRPCIO = "grpcio"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """The transport, and what it asks of connections. Times in seconds.

    Attributes:
        transport: The server's own HTTP/2, or grpcio's.
        keepalive_time_s: A connection silent for so long is asked whether it is still there.
        keepalive_timeout_s: It has so long to answer.
        min_ping_interval_s: How often a client may ping while no data is sent to it.
        max_ping_strikes: Pings above that which are forgiven.
        permits_pings_without_calls: Whether connections without a call in work ping, and are pinged, as others do.
        max_pings_without_data: How often a client that is sent nothing is pinged in a row; 0: without end. grpcio alone counts them.
        max_connection_idle_s: A connection without a call for so long is drained; None: never.
        max_connection_age_s: A connection older than this is drained; None: never.
        max_connection_age_grace_s: How long its calls may then go on.
    """

    transport: Transport = Transport.H2
    keepalive_time_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    min_ping_interval_s: float = 10.0
    max_ping_strikes: int = 2
    permits_pings_without_calls: bool = True
    max_pings_without_data: int = 0
    max_connection_idle_s: float | None = 300.0
    max_connection_age_s: float | None = None
    max_connection_age_grace_s: float = 30.0
