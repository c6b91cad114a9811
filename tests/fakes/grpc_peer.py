"""A handmade gRPC client on the `h2` library, and a server of the native transport for it, both on the running loop."""

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from stoker.server.core.limits import Limits
from stoker.server.rpc.http2.server import H2Server
from stoker.server.rpc.method import Kind, Method, in_task, method_table
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.rpc.status import kserve_status
from tests.fakes.fake_engine import FakeEngine, simple

#: hpack logs every header at debug level.
logging.getLogger("hpack").setLevel(logging.INFO)


def method(path: str, handle, kind: Kind = Kind.UNARY, *, starts_inline: bool = False, most_bytes: int = 1 << 30) -> Method:
    """A method with Triton's status codes."""
    if kind is Kind.UNARY:
        start = in_task(handle, is_inline=starts_inline)
        return Method(path=path, kind=kind, start=start, status=kserve_status, most_bytes=most_bytes)
    return Method(path=path, kind=kind, handle=handle, status=kserve_status, most_bytes=most_bytes)


@asynccontextmanager
async def serving(
    *methods: Method, engine: FakeEngine | None = None, limits: Limits | None = None, settings: GrpcSettings | None = None
) -> AsyncIterator[tuple[H2Server, int]]:
    """A native server with `methods`, and its port. At its end nothing may be reserved."""
    engine = engine or FakeEngine(simple())
    server = H2Server(method_table(methods), engine, limits or Limits(), "127.0.0.1", 0, settings)
    port = await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)
    assert engine.reserved_bytes == 0


@dataclass
class CallRecord:
    """The frames of one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    reset_code: int | None = None
    is_ended: bool = False

    @property
    def status(self) -> tuple[str, str]:
        """`grpc-status` and `grpc-message`, wherever they stood."""
        fields = self.headers | self.trailers
        return fields.get("grpc-status", ""), fields.get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        """The messages of the body, which must be whole."""
        found, body = [], self.body
        while body:
            size = int.from_bytes(body[1:5], "big")
            assert len(body) >= 5 + size
            found.append(body[5 : 5 + size])
            body = body[5 + size :]
        return found


class GrpcPeer:
    """One connection. `responses` has the responses by stream. While `reads` is False, the peer returns no window to the server."""

    def __init__(self, *, window_bytes: int | None = None) -> None:
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if window_bytes is not None:
            self.connection.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
            )
        self.responses: dict[int, CallRecord] = {}
        self.reads = True
        self.goaway: h2.events.ConnectionTerminated | None = None
        self.pings = 0
        self.acks = 0
        self.is_closed = False
        self._news = asyncio.Event()
        self._owed: list[tuple[int, int]] = []

    async def open(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        name = None if tls is None else "localhost"
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        self.connection.initiate_connection()
        self.flush()
        self._task = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    def flush(self) -> None:
        self._writer.write(self.connection.data_to_send())

    def write_raw(self, data: bytes) -> None:
        self.flush()
        self._writer.write(data)

    def fall_silent(self) -> None:
        """From now on it neither reads nor acknowledges."""
        self._task.cancel()

    def begin(self, path: str = "/a.B/Echo", metadata: Iterable[tuple[str, str]] = (), *, end: bool = False, **fields: str) -> int:
        """Sends a request's header fields; `fields` replace the usual ones (`te=""` leaves it out)."""
        usual = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        usual |= {"te": "trailers", "content-type": "application/grpc"}
        usual |= {name.replace("_", "-") if name != "method" else ":method": value for name, value in fields.items()}
        stream_id = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream_id, [*((n, v) for n, v in usual.items() if v), *metadata], end_stream=end)
        self.responses[stream_id] = CallRecord()
        return stream_id

    def send(self, stream_id: int, *messages: bytes, end: bool = False, flag: int = 0) -> None:
        self.connection.send_data(stream_id, b"".join(bytes([flag]) + len(m).to_bytes(4, "big") + m for m in messages), end_stream=end)

    async def send_all(self, stream_id: int, body: bytes) -> None:
        """Sends bytes within the windows, and the end."""
        while True:
            await self.until(lambda: self.connection.local_flow_control_window(stream_id) > 0)
            room = min(self.connection.local_flow_control_window(stream_id), self.connection.max_outbound_frame_size)
            piece, body = body[:room], body[room:]
            self.connection.send_data(stream_id, piece, end_stream=not body)
            self.flush()
            if not body:
                return

    async def call(
        self, message: bytes = b"hello", path: str = "/a.B/Echo", metadata: Iterable[tuple[str, str]] = (), **fields: Any
    ) -> CallRecord:
        """One unary call to its end."""
        stream_id = self.begin(path, metadata, **fields)
        self.send(stream_id, message, end=True)
        self.flush()
        return await self.ended(stream_id)

    async def ended(self, stream_id: int) -> CallRecord:
        """The response of a stream after its end, its reset, or the loss of the connection."""
        response = self.responses[stream_id]
        await self.until(lambda: response.is_ended or response.reset_code is not None or self.is_closed)
        return response

    async def until(self, is_so) -> None:
        """Waits until something that the server sent makes it so."""
        while not is_so():
            self._news.clear()
            await self._news.wait()

    def read_on(self) -> None:
        """Returns the windows that it kept while `reads` was False."""
        self.reads = True
        for stream_id, size in self._owed:
            self.connection.acknowledge_received_data(size, stream_id)
        self._owed.clear()
        self.flush()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                frame = head + await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                for event in self.connection.receive_data(frame):
                    self._take(event)
                self.flush()
                self._news.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.is_closed = True
        self._news.set()

    def _take(self, event: h2.events.Event) -> None:
        response = self.responses.get(getattr(event, "stream_id", 0) or 0, CallRecord())
        if isinstance(event, h2.events.ResponseReceived):
            response.headers = _text_fields(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            response.trailers = _text_fields(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            response.body += event.data
            if self.reads:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                self._owed.append((event.stream_id, event.flow_controlled_length))
        elif isinstance(event, h2.events.StreamEnded):
            response.is_ended = True
        elif isinstance(event, h2.events.StreamReset):
            response.reset_code = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event
            # The library takes the first GOAWAY for the end, but streams that are open go on, and a second GOAWAY may follow.
            self.connection.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        elif isinstance(event, h2.events.PingReceived):
            self.pings += 1
        elif isinstance(event, h2.events.PingAckReceived):
            self.acks += 1


@asynccontextmanager
async def connected(port: int, *, window_bytes: int | None = None) -> AsyncIterator[GrpcPeer]:
    """A peer, connected."""
    peer = GrpcPeer(window_bytes=window_bytes)
    await peer.open(port)
    try:
        yield peer
    finally:
        await peer.close()


def _text_fields(fields: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """The header fields of an event, decoded by `h2` as configured."""
    return dict(fields)


def binary(value: bytes) -> str:
    """A value of metadata whose name ends in `-bin`."""
    return base64.b64encode(value).decode().rstrip("=")


def run(scenario) -> None:
    """Runs a coroutine function, with a bound on its time."""

    async def main() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(main())
