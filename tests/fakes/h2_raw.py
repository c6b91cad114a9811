"""A peer that sends arbitrary handmade frames; the server's output is cut into frames."""

import struct
from typing import NamedTuple, TypeVar

from hpack import Encoder

from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.events import ConnectionEnded, Event, RequestStarted
from stoker.server.net.http2.limits import H2Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/package.Service/Method"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
)


class Frame(NamedTuple):
    """A frame sent by the server."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Any frame at all."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


def u32(*values: int) -> bytes:
    return b"".join(struct.pack(">I", value) for value in values)


def setting(identifier: int, value: int) -> bytes:
    return struct.pack(">HI", identifier, value)


def block(fields=REQUEST) -> bytes:
    """A header block without any use of the dynamic table."""
    return Encoder().encode([(name, value, True) for name, value in fields], huffman=False)


def request(stream_id: int = 1, flags: int = END_HEADERS, fields=REQUEST) -> bytes:
    return frame(HEADERS, flags, stream_id, block(fields))


def cut(data: bytes) -> list[Frame]:
    """The frames of the server's output, which must be complete."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + length, "our output ends within a frame"
        found.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), bytes(data[9 : 9 + length])))
        data = data[9 + length :]
    return found


E = TypeVar("E", bound=Event)


def expect(kind: type[E], event: Event) -> E:
    """The event, which must be of this kind."""
    assert isinstance(event, kind), event
    return event


class RawPeer:
    """Our connection after a proper handshake, and what came of it.

    Attributes:
        server: Our connection.
        events: All events so far.
    """

    def __init__(self, limits: H2Limits | None = None, *, handshake: bytes | None = None) -> None:
        self.server = ServerConnection(limits or H2Limits(), 0.0)
        self.server.data_to_send()
        self.events: list[Event] = []
        self.send(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK) if handshake is None else handshake)
        self.server.data_to_send()

    def send(self, *data: bytes, now_s: float = 0.0) -> list[Event]:
        """Gives bytes to the server connection in one read."""
        events = self.server.receive(b"".join(data), now_s)
        self.events += events
        return events

    def start(self, *data: bytes) -> RequestStarted:
        """Sends the start of one request; returns its event."""
        (event,) = self.send(*data)
        return expect(RequestStarted, event)

    def last(self, kind: type[E]) -> E:
        """The last event so far, which must be of this kind."""
        return expect(kind, self.events[-1])

    def output(self) -> list[Frame]:
        """The frames that the server connection sends."""
        return cut(b"".join(self.server.data_to_send()))

    def end(self) -> int | None:
        """The error code with which the server connection has ended; None: it has not. Its GOAWAY must have the same code."""
        if not (self.events and isinstance(self.events[-1], ConnectionEnded)):
            assert not self.server.is_finished
            return None
        code = self.events[-1].error_code
        last = self.output()[-1]
        assert last.kind == GOAWAY
        assert int.from_bytes(last.payload[4:8], "big") == code
        assert last.payload[8:] == self.events[-1].debug
        assert self.server.is_finished
        assert not self.server.has_output
        assert self.server.open_streams == 0
        return code
