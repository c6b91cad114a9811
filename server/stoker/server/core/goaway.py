"""Why a gRPC connection was sent GOAWAY."""

import enum


class GoawayReason(enum.Enum):
    """The value is the label of `stoker_grpc_goaways_total`."""

    #: The server is shutting down.
    SHUTDOWN = "shutdown"
    #: The connection is older than `--grpc-max-connection-age`.
    AGE = "connection_age"
    #: It had no call for `--grpc-max-connection-idle`.
    IDLE = "connection_idle"
    #: It was the one without a call for the longest time when the port was full.
    FULL = "connections_full"
    #: Its client sent more of something than its traffic accounts for; see `stoker.server.net.http2.events.Flood`.
    CONTROL_FLOOD = "control_flood"
    RESET_FLOOD = "reset_flood"
    FAULT_FLOOD = "fault_flood"
    HEADERS = "oversized_metadata"
    #: Its client pinged too often; gRPC's `too_many_pings`.
    PINGS = "too_many_pings"
    #: A flood went on, or its client exceeded a bound that no client needs to reach (ENHANCE_YOUR_CALM).
    EXCESS = "excess"
    #: Its client broke a rule of HTTP/2.
    PROTOCOL = "protocol_error"
