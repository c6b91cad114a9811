"""A foreign HTTP/2 client (the `h2` library) and a server connection, joined in memory."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import h2.config
import h2.connection
import h2.events
import h2.settings

from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.events import DataReceived, Event
from stoker.server.net.http2.limits import H2Limits

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/package.Service/Method"),
    (":authority", "localhost:8500"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=h2.events.Event)


class Exchange:
    """Both ends, and what each has seen.

    Attributes:
        client: The `h2` library's connection.
        server: Ours.
        events: The events of our side.
        bodies: DATA of responses by stream.
        responses: All events of the client by stream; None: of the connection.
    """

    def __init__(
        self, limits: H2Limits | None = None, *, settings: Mapping[h2.settings.SettingCodes, int] | None = None, auto_consume: bool = True
    ) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if settings:
            self.client.local_settings = h2.settings.Settings(client=True, initial_values=cast("Any", settings))
        self.client.initiate_connection()
        self.server = ServerConnection(limits or H2Limits(), 0.0)
        self.events: list[Event] = []
        self.responses: dict[int | None, list[h2.events.Event]] = defaultdict(list)
        self.bodies: dict[int, bytearray] = defaultdict(bytearray)
        self.auto_consume = auto_consume
        self.sent_bytes = 0

    def settle(self, now_s: float = 0.0, *, most_bytes: int = 1 << 30) -> None:
        """Carries bytes both ways, pieces of `most_bytes` at a time, until both sides have nothing to send."""
        while True:
            up = self.client.data_to_send()
            for start in range(0, len(up), most_bytes):
                self._up(up[start : start + most_bytes], now_s)
            pieces = self.server.data_to_send()
            down = b"".join(pieces)
            self.sent_bytes += len(down)
            if not up and not down:
                return
            for start in range(0, len(down), most_bytes):
                self._down(down[start : start + most_bytes])

    def _up(self, data: bytes, now_s: float) -> None:
        for event in self.server.receive(data, now_s):
            self.events.append(event)
            if self.auto_consume and isinstance(event, DataReceived):
                self.server.consumed(event.stream_id, len(event.data))

    def _down(self, data: bytes) -> None:
        for event in self.client.receive_data(data):
            stream_id = getattr(event, "stream_id", None)
            self.responses[stream_id or None].append(event)
            if isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                if self.auto_consume:
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def events_of(self, kind: type[E]) -> list[E]:
        """The server's events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def seen(self, stream_id: int | None, kind: type[F]) -> list[F]:
        """The client's events of a kind."""
        return [event for event in self.responses[stream_id] if isinstance(event, kind)]

    def body_received(self, stream_id: int) -> bytes:
        """The body of a request as the server received it."""
        return b"".join(event.data for event in self.events if isinstance(event, DataReceived) and event.stream_id == stream_id)
