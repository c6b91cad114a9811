"""How the clients of the gRPC port share the budget of bytes in flight, on a clock of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.http2.frames import FLAG_END_STREAM as END_STREAM
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.http2.responses import ENDING
from stoker.server.rpc.method import Kind, method_table
from stoker.server.rpc.restricted import Restrictions, restricted
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, PeakBudget, simple
from tests.fakes.grpc_peer import method
from tests.fakes.h2_raw import DATA, HEADERS, RST_STREAM, WINDOW_UPDATE, cut, frame
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
        port.after(0.5)
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
        assert greedy.share.held_bytes == len(PART) + 5
        # Requests of other connections do not wait behind it.
        begin(other, 1, pieces=slice(-1))
        assert refusals(other) == b""
        assert (port.engine.budget.held_bytes, len(port.engine.budget.queue)) == (2 * len(PART) + 10, 1)
        for _ in range(3):
            port.after(4)
            read(greedy, frame(DATA, 0, 1, bytes(1000)))
        await settle()
        assert b"the requests of this connection hold as many bytes as one connection may" in refusals(greedy)

    on_a_port(scenario)


def test_requests_without_a_response_count_against_the_half():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        begin(connection, 1)
        begin(connection, 3)
        assert len(port.engine.budget.queue) == 1
        assert connection.share.held_bytes == len(PART) + 5
        port.after(11)
        await settle()
        assert b"hold as many bytes as one connection may, no room for 400005 more within 10 s" in refusals(connection)

    on_a_port(scenario)


def test_request_larger_than_the_half_passes_as_the_only_one():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        read(connection, opening(1, b"/a.B/Waits") + b"".join(framed(bytes(2 * MIB), 1)))
        assert refusals(connection) == b""
        begin(connection, 3)
        assert len(port.engine.budget.queue) == 1

    on_a_port(scenario)


def test_small_requests_pass_beside_a_large_one_of_their_connection():
    async def scenario(port: Port) -> None:
        shared, half_of_one = port.connect(), b"\0" + (100).to_bytes(4, "big") + bytes(50)
        read(shared, opening(1, b"/a.B/Waits") + frame(DATA, 0, 1, half_of_one))
        begin(shared, 3, pieces=slice(-1), message=bytes(800_000))
        read(shared, opening(5, b"/a.B/Waits") + frame(DATA, 0, 5, half_of_one))
        assert refusals(shared) == b""
        begin(shared, 9)
        assert len(port.engine.budget.queue) == 1

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


def windows(connection: GrpcProtocol, stream_id: int) -> list[int]:
    """The window that the server has given back for a stream, by WINDOW_UPDATE frame."""
    transport: Any = connection.transport
    updates = [each for each in cut(bytes(transport.written)) if each.kind == WINDOW_UPDATE and each.stream_id == stream_id]
    return [int.from_bytes(each.payload, "big") for each in updates]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_waiting_request_is_held_back_by_its_window_and_goes_on_when_another_ends():
    async def scenario(port: Port) -> None:
        first, second = port.connect(), port.connect()
        message = bytes(6 * MIB)
        pieces = framed(message, 1, 16_384)
        begin(first, 1, pieces=slice(-1), message=bytes(2 * MIB))
        # As much as its window allows: the half of the window would otherwise be given back.
        read(second, opening(1, b"/a.B/Waits") + b"".join(pieces[: 3 * MIB // 16_384]))
        assert windows(second, 1) == []
        assert port.engine.budget.held_bytes == 2 * MIB + 5
        assert len(port.engine.budget.queue) == 1
        read(first, frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
        await settle()
        assert sum(windows(second, 1)) >= 2 * MIB
        assert port.engine.budget.held_bytes == len(message) + 5
        read(second, b"".join(pieces[3 * MIB // 16_384 :]))
        assert list(second.calls.open) == [1]
        assert not second.calls.receiving

    on_a_port(scenario)


def test_waiting_request_that_has_arrived_completely_begins_when_another_ends():
    async def scenario(port: Port) -> None:
        first, second = port.connect(), port.connect()
        begin(first, 1, pieces=slice(-1), message=bytes(800_000))
        begin(second, 1)
        assert second.calls.receiving
        read(first, frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
        await settle()
        assert (refusals(second), list(second.calls.open), list(second.calls.receiving)) == (b"", [1], [])

    on_a_port(scenario)


def test_waiting_request_is_rejected_with_a_status_after_its_time():
    async def scenario(port: Port) -> None:
        second = port.connect()
        assert port.engine.budget.reserve(800_000)
        begin(second, 1, pieces=slice(-1))
        port.after(9)
        assert refusals(second) == b""
        port.after(1.5)
        await settle()
        assert b"no room for 400005 more within 10 s: try again" in refusals(second)
        # RFC 9113, section 8.1: the end of the response, then NO_ERROR.
        transport: Any = second.transport
        last = cut(bytes(transport.written))[-2:]
        assert [(each.kind, each.flags & END_STREAM or each.payload) for each in last] == [(HEADERS, 1), (RST_STREAM, bytes(4))]
        assert not len(port.engine.budget.queue)
        port.engine.budget.release(800_000)

    on_a_port(scenario)


@pytest.mark.parametrize("ends", ["cancelled", "closed", "cut short", "reset"])
def test_request_that_ends_while_it_waits_leaves_the_queue(ends: str):
    async def scenario(port: Port) -> None:
        first, second, third = port.connect(), port.connect(), port.connect()
        begin(first, 1, pieces=slice(-1), message=bytes(500_000))
        begin(second, 1, pieces=slice(-1), message=bytes(MIB))
        begin(third, 1)
        # The third fits, but waits for its turn.
        assert len(port.engine.budget.queue) == 2
        if ends == "cancelled":
            read(second, frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
        elif ends == "closed":
            second.connection_lost(None)
        elif ends == "reset":
            second.fail_call(ENDING)
        else:
            read(second, frame(DATA, END_STREAM, 1, b""))
            assert b"the request ends inside a message" in refusals(second)
        await settle()
        assert not len(port.engine.budget.queue)
        assert (list(third.calls.open), list(third.calls.receiving)) == ([1], [])

    on_a_port(scenario)


def test_first_bytes_of_a_large_request_do_not_reserve_all_of_it():
    async def scenario(port: Port) -> None:
        connection = port.connect()
        read(connection, opening(1, b"/a.B/Waits") + frame(DATA, 0, 1, b"\0" + (500 * MIB).to_bytes(4, "big") + bytes(1000)))
        assert port.engine.budget.held_bytes == 1005

    on_a_port(scenario)


def test_request_above_the_bound_of_one_is_rejected_by_its_prefix():
    async def scenario(port: Port) -> None:
        port.engine.budget.most_request_bytes = 2 * MIB
        connection = port.connect()
        begin(connection, 1, pieces=slice(3), message=bytes(3 * MIB))
        assert b"more than the 2097152 that one request may take" in refusals(connection)

    on_a_port(scenario)


def test_one_request_more_than_may_wait_is_rejected_at_once():
    async def scenario(port: Port) -> None:
        begin(port.connect(), 1, pieces=slice(-1), message=bytes(800_000))
        for _ in range(32):
            begin(port.connect(), 1)
        last = port.connect()
        begin(last, 1)
        assert b"no room for 400005 more, and 32 requests wait already: try again" in refusals(last)

    on_a_port(scenario)
