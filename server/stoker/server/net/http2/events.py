"""The events of a connection, in the order in which the peer caused them. They are named tuples because each request makes some."""

import enum
from typing import ClassVar, NamedTuple


class Flood(enum.Enum):
    """A budget that a peer may exceed; the value is its name in metrics."""

    #: SETTINGS, PING, PRIORITY, GOAWAY, WINDOW_UPDATE, unknown and empty frames, and small ones for streams that the server has reset.
    CONTROL = "control_flood"
    #: Streams that the peer resets, and requests that are refused by REFUSED_STREAM.
    RESETS = "reset_flood"
    #: Streams that end because the peer broke a rule, and requests with too large headers.
    FAULTS = "fault_flood"
    #: The metadata of one request, far above the limit: it is not decoded, and so no later block can be.
    HEADERS = "oversized_metadata"


#: Fields in their order, names in lower case.
Headers = tuple[tuple[bytes, bytes], ...]


def _values(event: "RequestStarted | DataReceived") -> tuple[object, ...]:
    return tuple(getattr(event, name) for name in event.__match_args__)


class KeptFields:
    """The header fields of requests that begin with the same header block.

    Attributes:
        headers: Pseudo-header fields first.
        derived: What the application has made of the fields; it may set this. Kept as long as the block is.
    """

    __slots__ = ("derived", "headers")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.derived: object = None


class RequestStarted:
    """The header fields of a valid request have arrived.

    Attributes:
        fields: The same object again for a block that is known.
        end_stream: Whether the request has no body.
    """

    __slots__ = ("end_stream", "fields", "stream_id")
    __match_args__: ClassVar = ("stream_id", "headers", "end_stream")

    def __init__(self, stream_id: int, fields: KeptFields, end_stream: bool) -> None:
        self.stream_id = stream_id
        self.fields = fields
        self.end_stream = end_stream

    @property
    def headers(self) -> Headers:
        """Pseudo-header fields first."""
        return self.fields.headers

    def __eq__(self, other: object) -> bool:
        return type(other) is RequestStarted and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RequestStarted{_values(self)}"


class HeadersTooLarge(NamedTuple):
    """A request exceeds `header_list_bytes` or `header_count`. The application responds with an error, then resets with NO_ERROR."""

    stream_id: int
    size_bytes: int
    field_count: int
    end_stream: bool


class DataReceived:
    """Bytes of a body: a DATA frame or a part of one.

    Attributes:
        data: A memoryview, for larger pieces, keeps the whole read that it was received with in memory.
        end_stream: Whether the request is complete; `data` may then be empty.
    """

    __slots__ = ("data", "end_stream", "stream_id")
    __match_args__: ClassVar = ("stream_id", "data", "end_stream")

    def __init__(self, stream_id: int, data: bytes | memoryview, end_stream: bool) -> None:
        self.stream_id = stream_id
        self.data = data
        self.end_stream = end_stream

    def __eq__(self, other: object) -> bool:
        return type(other) is DataReceived and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DataReceived{_values(self)}"


class DataWritten(NamedTuple):
    """More bytes of a body are in the buffer of `ServerConnection.set_receive_buffer`. Reported at steps, and at the end.

    Attributes:
        size_bytes: How many more.
        end_stream: Whether the request is complete.
    """

    stream_id: int
    size_bytes: int
    end_stream: bool


class TrailersReceived(NamedTuple):
    """Fields behind the body have arrived; the request is complete."""

    stream_id: int
    headers: Headers


class FloodRejected(NamedTuple):
    """The peer has exceeded a budget: GOAWAY is in the output, new streams are refused, open ones go on."""

    flood: Flood
    text: str


class StreamReset(NamedTuple):
    """A stream is gone.

    Attributes:
        error_code: An `ErrorCode`, or any number the peer sent.
        is_local: Whether the server reset it because the peer broke a rule.
    """

    stream_id: int
    error_code: int
    is_local: bool


class PingReceived(NamedTuple):
    """The peer sent a PING; its ACK is in the output."""

    payload: bytes


class PingAcked(NamedTuple):
    """The peer has acknowledged a `ping`."""

    payload: bytes


class PeerLeaving(NamedTuple):
    """The peer sent GOAWAY; open streams go on."""

    error_code: int
    debug: bytes


class ConnectionEnded(NamedTuple):
    """The peer broke a rule of the connection: GOAWAY is in the output, all streams are gone."""

    error_code: int
    debug: bytes


Event = (
    RequestStarted
    | HeadersTooLarge
    | DataReceived
    | DataWritten
    | TrailersReceived
    | FloodRejected
    | StreamReset
    | PingReceived
    | PingAcked
    | PeerLeaving
    | ConnectionEnded
)
