"""The response to the only connection that sends is written at the end of its read; several connections share a batch of the next turn."""

import asyncio
from itertools import count
from typing import Any

from stoker.backends.api.clock import SystemClock
from stoker.server.core.completion import Completion
from stoker.server.core.limits import Limits
from stoker.server.core.timers import LoopTimers
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.method import Kind, Method, Result, method_table
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.rpc.status import kserve_status
from stoker.server.tuning.constants import SINGLE_CONNECTION_READS
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.h2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, cut, frame
from tests.fakes.h2_reads import ReadTransport, read

PATH = "/a.B/Soon"
MOST_BYTES = 16_000
FIELDS = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), (b":authority", b"x")),
    *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
)


class Transport(ReadTransport):
    """Keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> Any:
        return None


class Client:
    """One connection of `context`, and its output."""

    def __init__(self, context: ConnectionContext) -> None:
        self.transport = Transport()
        self._ids = count(1, 2)
        self._connection = GrpcProtocol(context)
        self._connection.connection_made(self.transport)  # type: ignore[arg-type]
        read(self._connection, PREFACE + frame(SETTINGS))
        self.transport.writes.clear()

    def ask(self, calls: int, size_bytes: int = 3) -> None:
        """Sends this number of calls in one read, with messages of that size."""
        body = b"\0" + size_bytes.to_bytes(4, "big") + b"a" * size_bytes
        read(
            self._connection,
            b"".join(
                frame(HEADERS, END_HEADERS, stream_id, block(FIELDS)) + frame(DATA, END_STREAM, stream_id, body)
                for stream_id, _ in zip(self._ids, range(calls), strict=False)
            ),
        )

    def responses(self) -> list[int]:
        """The number of responses in each write since the last call."""
        writes, self.transport.writes = self.transport.writes, []
        return [sum(each.kind == DATA for each in cut(data)) for data in writes]


def context_of_loop() -> ConnectionContext:
    """A context with one method, which completes when the server's timers run."""
    loop, engine = asyncio.get_running_loop(), FakeEngine(simple())
    timers = LoopTimers(loop, SystemClock(), engine.reads.defer)

    def start(data: bytes, call: Any) -> Completion[Result]:
        completion = Completion[Result]()
        timers.call_soon(lambda: completion.complete(bytes(data[:3])))
        return completion

    method = Method(path=PATH, kind=Kind.UNARY, start=start, status=kserve_status, most_bytes=MOST_BYTES)
    return ConnectionContext(method_table([method]), engine, Limits(), GrpcSettings(), loop)


async def single_client(context: ConnectionContext) -> Client:
    """A client that has sent often enough to count as the only one that does."""
    client = Client(context)
    for _ in range(SINGLE_CONNECTION_READS + 1):
        client.ask(1)
        await asyncio.sleep(0)
    client.responses()
    return client


def test_single_connection_gets_its_response_with_the_last_write_of_its_read():
    async def scenario() -> None:
        client = Client(context_of_loop())
        for _ in range(SINGLE_CONNECTION_READS):
            client.ask(3)
            for _ in range(2):
                await asyncio.sleep(0)
        client.responses()
        for calls in (3, 1, 8):
            client.ask(calls)
            assert client.responses() == [calls]
        # Nothing is left for the loop to do.
        for _ in range(2):
            await asyncio.sleep(0)
        assert client.responses() == []

    asyncio.run(scenario())


def test_connections_that_send_in_turn_are_batched():
    async def scenario() -> None:
        context = context_of_loop()
        clients = [Client(context), Client(context)]
        for _ in range(2 * SINGLE_CONNECTION_READS):
            for client in clients:
                client.ask(2)
                assert client.responses() == []
            for _ in range(2):
                await asyncio.sleep(0)
            assert [client.responses() for client in clients] == [[2], [2]]

    asyncio.run(scenario())


def test_read_with_possible_followers_in_the_same_turn_waits_for_them():
    async def scenario() -> None:
        client = await single_client(context_of_loop())
        # As large requests are read by a loop whose buffer they do not fit in.
        client.ask(14, MOST_BYTES)
        client.ask(2)
        assert sum(client.responses()) == 2
        for _ in range(2):
            await asyncio.sleep(0)
        assert sum(client.responses()) == 14
        client.ask(2)
        assert client.responses() == [2]

    asyncio.run(scenario())


def test_read_that_is_processed_in_pieces_is_one_read():
    async def scenario() -> None:
        client = await single_client(context_of_loop())
        client.ask(10, MOST_BYTES)
        assert client.responses() == [10]

    asyncio.run(scenario())


def test_read_of_very_many_calls_counts_as_one_of_its_connection():
    async def scenario() -> None:
        context = context_of_loop()
        single, other = await single_client(context), Client(context)
        other.ask(100)
        single.ask(1)
        assert single.responses() == []
        for _ in range(4):
            await asyncio.sleep(0)
        assert sum(single.responses()) == 1
        assert sum(other.responses()) == 100

    asyncio.run(scenario())
