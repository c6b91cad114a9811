"""How the clients of the gRPC port share the budget of bytes in flight, on a clock of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

from stoker.server.core.limits import Limits
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.method import Kind, method_table
from stoker.server.rpc.restricted import Restrictions, restricted
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, PeakBudget, simple
from tests.fakes.grpc_peer import method
from tests.fakes.h2_raw import DATA, HEADERS, RST_STREAM, cut, frame
from tests.fakes.h2_reads import MemoryTransport, read
from tests.unit.rpc.test_grpc_large_messages import HELLO, framed, opening
from tests.unit.rpc.test_grpc_reads_and_time import Loop

MIB = 1 << 20
PART = bytes(400_000)


async def for_ever(data: bytes, call: Any) -> bytes:
    await asyncio.Event().wait()
    return data


async def take_all(call: Any) -> None:
    while await call.receive() is not None:
        pass


class Port:
    """Connections without sockets, of one server, whose budget is one MiB."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.engine = FakeEngine(simple(), budget=PeakBudget(MIB, lambda: int(self.loop.now_s * 1e9)))
        index = method("/inference.GRPCInferenceService/RepositoryIndex", for_ever)
        guarded = restricted([index], Restrictions(api_key="of the server"))
        methods = method_table([method("/a.B/Waits", for_ever), method("/a.B/Takes", take_all, Kind.CLIENT_STREAM), *guarded])
        self.front = ConnectionContext(methods, self.engine, Limits(), GrpcSettings(), self.loop)  # type: ignore[arg-type]

    def connect(self) -> GrpcProtocol:
        connection = GrpcProtocol(self.front)
        connection.connection_made(MemoryTransport())  # type: ignore[arg-type]
        read(connection, HELLO)
        return connection

    def after(self, seconds: float) -> None:
        self.loop.now_s += seconds
        for connection in self.front.connections:
            connection.sweep(self.loop.now_s)


def begin(
    connection: GrpcProtocol, stream_id: int, *, path: bytes = b"/a.B/Waits", pieces: slice = slice(None), message: bytes = PART
) -> None:
    read(connection, opening(stream_id, path) + b"".join(framed(message, stream_id)[pieces]))


def refusals(connection: GrpcProtocol) -> bytes:
    """The header blocks written so far, as they are."""
    transport: Any = connection.transport
    return b"".join(each.payload for each in cut(bytes(transport.written)) if each.kind == HEADERS)


def on_a_port(scenario: Callable[[Port], Any]) -> None:
    async def main() -> None:
        port = Port()
        await scenario(port)
        for connection in list(port.front.connections):
            assert isinstance(connection, GrpcProtocol)
            connection.transport.close()
            connection.connection_lost(None)
            assert connection.share.held_bytes == 0
        for _ in range(5):
            await asyncio.sleep(0)
        assert (port.engine.reserved_bytes, port.engine.budget.held_bytes, port.engine.budget._uploads) == (0, 0, set())

    asyncio.run(main())


def test_slowest_upload_is_evicted_if_another_needs_its_bytes():
    async def scenario(port: Port) -> None:
        slow, other, third = port.connect(), port.connect(), port.connect()
        begin(slow, 1, pieces=slice(-1))
        port.after(4)
        begin(other, 1, pieces=slice(-1))
        port.after(0.5)
        assert refusals(slow) == b""
        begin(third, 1)
        assert b"this request was the slowest to arrive" in refusals(slow)
        assert (refusals(other), refusals(third)) == (b"", b"")
        assert port.engine.budget.evicted == 1

    on_a_port(scenario)


def test_requests_of_one_connection_hold_at_most_half_of_the_budget():
    async def scenario(port: Port) -> None:
        greedy, other = port.connect(), port.connect()
        begin(greedy, 1, pieces=slice(-1))
        begin(greedy, 3, pieces=slice(-1))
        assert b"one connection may hold 524288" in refusals(greedy)
        begin(other, 1, pieces=slice(-1))
        assert refusals(other) == b""

    on_a_port(scenario)


def test_requests_without_a_response_count_against_the_half():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        begin(connection, 1)
        begin(connection, 3)
        assert b"one connection may hold 524288" in refusals(connection)
        assert connection.share.held_bytes == len(PART) + 5

    on_a_port(scenario)


def test_request_larger_than_the_half_passes_as_the_only_one():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        read(connection, opening(1, b"/a.B/Waits") + b"".join(framed(bytes(2 * MIB), 1)))
        assert refusals(connection) == b""
        begin(connection, 3)
        assert b"one connection may hold" in refusals(connection)

    on_a_port(scenario)


def test_small_requests_pass_beside_a_large_one_of_their_connection():
    async def scenario(port: Port) -> None:
        shared, half_of_one = port.connect(), b"\0" + (100).to_bytes(4, "big") + bytes(50)
        read(shared, opening(1, b"/a.B/Waits") + frame(DATA, 0, 1, half_of_one))
        begin(shared, 3, pieces=slice(-1), message=bytes(800_000))
        read(shared, opening(5, b"/a.B/Waits") + frame(DATA, 0, 5, half_of_one))
        assert refusals(shared) == b""
        begin(shared, 9)
        assert b"one connection may hold 524288" in refusals(shared)

    on_a_port(scenario)


def test_calls_without_the_api_key_hold_nothing():
    async def scenario(port: Port) -> None:
        stranger = port.connect()
        begin(stranger, 1, path=b"/inference.GRPCInferenceService/RepositoryIndex", pieces=slice(-1))
        assert b"this server requires an API key" in refusals(stranger)
        assert port.engine.peak_bytes == 0

    on_a_port(scenario)


def test_early_bytes_do_not_excuse_later_slowness():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        pieces = framed(PART[:2000], 1, 20)
        read(connection, opening(1, b"/a.B/Waits") + frame(DATA, 0, 1, b"\0" + (300_000).to_bytes(4, "big") + bytes(290_000)))
        for piece in pieces:
            port.after(5)
            await asyncio.sleep(0)
            if refusals(connection):
                break
            read(connection, piece)
        assert b"the request came too slowly" in refusals(connection)
        assert port.loop.now_s < 1030

    on_a_port(scenario)


def test_stream_may_be_silent_between_its_messages_but_not_within_one():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        begin(connection, 1, path=b"/a.B/Takes", pieces=slice(-1), message=PART[:100_000])
        begin(connection, 3, path=b"/a.B/Takes", message=PART[:100_000])
        read(connection, opening(5, b"/a.B/Takes") + b"".join(framed(PART[:100_000], 5, ends=False)))
        for _ in range(5):
            await asyncio.sleep(0)
        port.after(5)
        assert b"the request came too slowly" not in refusals(connection)
        port.after(6)
        await asyncio.sleep(0)
        assert refusals(connection).count(b"the request came too slowly") == 1
        assert list(connection.calls.open) == [5]
        port.after(40)
        assert list(connection.calls.open) == [5]

    on_a_port(scenario)


def test_unread_response_is_evicted_if_another_needs_its_bytes():
    async def scenario(port: Port) -> None:
        slow, other = port.connect(), port.connect()
        assert slow.calls.unflushed.keep(slow, 1, 800_000, is_unary=True)
        port.after(4)
        begin(other, 1)
        assert refusals(other) == b""
        assert slow.calls.unflushed.size_bytes == 0
        assert not [each for each in cut(bytes(slow.transport.written)) if each.kind == RST_STREAM]  # type: ignore[attr-defined]

    on_a_port(scenario)
