"""HTTP/2 for a server, without input or output (RFC 9113, RFC 7541): `ServerConnection`, its events and its limits."""

from stoker.server.net.http2.connection import ConnectionStatistics, ServerConnection, StreamStatistics
from stoker.server.net.http2.events import (
    ConnectionEnded,
    DataReceived,
    DataWritten,
    Event,
    Flood,
    FloodRejected,
    Headers,
    HeadersTooLarge,
    PeerLeaving,
    PingAcked,
    PingReceived,
    RequestStarted,
    StreamReset,
    TrailersReceived,
)
from stoker.server.net.http2.frames import ErrorCode, MisuseError
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits

__all__ = [
    "ConnectionEnded",
    "ConnectionStatistics",
    "DataReceived",
    "DataWritten",
    "ErrorCode",
    "Event",
    "Flood",
    "FloodRejected",
    "H2Limits",
    "Headers",
    "HeadersTooLarge",
    "MisuseError",
    "PeerLeaving",
    "PingAcked",
    "PingReceived",
    "RequestStarted",
    "ServerConnection",
    "StreamReset",
    "StreamStatistics",
    "TrailersReceived",
    "encode_block",
]
