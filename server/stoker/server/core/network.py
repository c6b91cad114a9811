"""Facts of connections that several packages share: loopback addresses, and reasons for GOAWAY."""

import enum
import ipaddress


def is_loopback(address: str) -> bool:
    """Whether `address`, as an operator writes it, is of this machine alone: `localhost`, 127.0.0.0/8 or ::1 (RFC 5735, RFC 4291).

    A name other than `localhost` counts as reachable from elsewhere: what it resolves to may change.
    """
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


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
