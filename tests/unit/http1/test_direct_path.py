"""Infer requests at byte level, through a real listener: by the short path, in any mix with others, at any pace."""

import asyncio
import gc
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.http1.port import HttpPort
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.protocols.services import Services
from stoker.server.web.app import WebApp
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo
from tests.fakes.http_reads import arrive
from tests.fakes.no_app import no_app

LARGE = 200_000


class Peer:
    """A client at byte level."""

    def __init__(self, listener: HttpListener, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.listener = listener
        self.port = port
        self.reader = reader
        self.writer = writer

    async def response(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of the next response."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), head, await self.reader.readexactly(length)

    @property
    def connections(self) -> list[HttpConnection]:
        return self.listener.connections


@asynccontextmanager
async def served(engine: FakeEngine, limits: Limits) -> AsyncIterator[Peer]:
    services = Services(engine, limits)
    infer = HttpInfer(engine, limits, services.extensions)
    app = WebApp(services, infer)
    listener = HttpListener(app, limits, "127.0.0.1", 0, direct=InferRoutes(infer))
    port = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(listener, port, reader, writer)
    finally:
        writer.close()
        await listener.stop(1)


def talk(scenario: Callable[[Peer], Awaitable[None]], engine: FakeEngine, limits: Limits | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), served(engine, limits or Limits()) as peer:
            await scenario(peer)

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def echo_engine(**options: Any) -> FakeEngine:
    return FakeEngine(echo(DataType.INT32, (-1,), name="echo"), **options)


def post(body: bytes, *fields: bytes, path: bytes = b"/v2/models/echo/infer") -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, lines, len(body), body)


def json_body(*values: int, id: str = "") -> bytes:
    return orjson.dumps({"id": id, "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, len(values)], "data": values}]})


def binary_body(array: Any) -> tuple[bytes, bytes]:
    """The body, and the header with the length of its JSON part."""
    parameters = {"binary_data_size": array.nbytes}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, array.size], "parameters": parameters}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return text + array.tobytes(), b"Inference-Header-Content-Length: %d" % len(text)


def data_of(response: tuple[int, bytes, bytes]) -> list[int]:
    status, head, body = response
    assert status == 200, body
    if b"inference-header-content-length: " in head:
        at = int(head.split(b"inference-header-content-length: ")[1].split(b"\r\n")[0])
        return np.frombuffer(body[at:], np.int32).tolist()
    data: list[int] = orjson.loads(body)["outputs"][0]["data"]
    return data


def test_direct_and_asgi_requests_get_responses_in_order_on_one_connection():
    binary, header = binary_body(np.arange(3, dtype=np.int32))
    requests = [
        (post(json_body(1, 2)), [1, 2]),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n", {"live": True}),
        (post(binary, header), [0, 1, 2]),
        (post(json_body(3), path=b"/v2/models/ech%6f/infer"), [3]),
        (post(json_body(4), path=b"/v2/models/echo/versions/1/infer?x=1"), [4]),
        (b"GET /v2/models/nope HTTP/1.1\r\nHost: a\r\n\r\n", None),
        (post(json_body(5)), [5]),
    ]

    async def scenario(peer: Peer) -> None:
        peer.writer.write(b"".join(request for request, _ in requests))
        for _, wanted in requests:
            response = await peer.response()
            if isinstance(wanted, list):
                assert data_of(response) == wanted
            else:
                assert (response[0], orjson.loads(response[2])) == (200, wanted) if wanted else response[0] == 400

    talk(scenario, echo_engine())


def test_single_bytes_get_the_same_responses():
    binary, header = binary_body(np.arange(3, dtype=np.int32))
    wire = post(json_body(1, 2)) + post(binary, header) + b"\r\nGET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"

    async def scenario(peer: Peer) -> None:
        peer.writer.get_extra_info("socket").setsockopt(6, 1, 1)
        for at in range(len(wire)):
            peer.writer.write(wire[at : at + 1])
            await peer.writer.drain()
        assert data_of(await peer.response()) == [1, 2]
        assert data_of(await peer.response()) == [0, 1, 2]
        assert (await peer.response())[0] == 200

    talk(scenario, echo_engine())


def test_client_that_expects_100_continue_gets_it():
    async def scenario(peer: Peer) -> None:
        head, _, body = post(json_body(1, 2), b"Expect: 100-continue").partition(b"\r\n\r\n")
        peer.writer.write(head + b"\r\n\r\n")
        assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.writer.write(body)
        assert data_of(await peer.response()) == [1, 2]

    talk(scenario, echo_engine())


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_binary", [False, True])
def test_large_bodies_are_returned_completely(is_chunked: bool, is_binary: bool):
    array = np.arange(LARGE, dtype=np.int32)
    body, header = binary_body(array) if is_binary else (json_body(*array.tolist()), b"X: y")

    async def scenario(peer: Peer) -> None:
        if is_chunked:
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 70_000]), body[at : at + 70_000]) for at in range(0, len(body), 70_000))
            head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n%b\r\nTransfer-Encoding: chunked\r\n\r\n" % header
            peer.writer.write(head + chunks + b"0\r\n\r\n")
        else:
            peer.writer.write(post(body, header))
        peer.writer.write(post(json_body(7)))
        assert data_of(await peer.response()) == array.tolist()
        assert data_of(await peer.response()) == [7]

    engine = echo_engine()
    talk(scenario, engine)
    if is_binary and not is_chunked:
        (large, _) = engine.requests
        assert large.inputs["INPUT"].ctypes.data % 64 == 0
        assert not large.inputs["INPUT"].flags.writeable


def test_unread_body_is_dropped_and_the_next_request_served():
    async def scenario(peer: Peer) -> None:
        # The server responds before most of the body has come.
        body = bytes(LARGE)
        request = post(body)
        peer.writer.write(request[:100_000])
        assert (await peer.response())[0] == 503
        peer.writer.write(request[100_000:] + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await peer.response())[0] == 200

    talk(scenario, echo_engine(budget_bytes=50_000), Limits(admission_wait_s=0.001))


def test_declared_body_above_the_limit_is_refused_at_once():
    async def scenario(peer: Peer) -> None:
        peer.writer.write(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n")
        assert (await peer.response())[0] == 413
        assert await peer.reader.read() == b""

    talk(scenario, echo_engine())


def test_chunked_body_above_the_limit_gets_a_response_and_ends_the_connection():
    async def scenario(peer: Peer) -> None:
        peer.writer.write(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(2):
            peer.writer.write(b"800\r\n" + bytes(2048) + b"\r\n")
        assert (await peer.response())[0] == 413
        peer.writer.write(b"800\r\n" + bytes(2048) + b"\r\n")
        assert await peer.reader.read() == b""

    talk(scenario, echo_engine(), Limits(http_body_bytes=4000))


def waiting_model() -> tuple[FakeModel, asyncio.Event]:
    """A model whose requests wait for the event."""
    model, go = echo(DataType.INT32, (-1,), name="echo"), asyncio.Event()

    async def wait(request: InferRequest) -> None:
        await go.wait()

    model.before = wait
    return model, go


def test_request_is_cancelled_when_its_client_leaves():
    model, _ = waiting_model()
    engine = FakeEngine(model)

    async def scenario(peer: Peer) -> None:
        peer.writer.write(post(json_body(1, 2)) * 2)
        await engine.arrival.wait()
        assert engine.reserved_bytes > 0
        peer.writer.transport.abort()
        await engine.cancellation.wait()
        assert len(engine.requests) == 1

    talk(scenario, engine)


def test_pipelined_bytes_wait_unread():
    model, go = waiting_model()
    engine = FakeEngine(model)
    request = post(json_body(*range(100)))

    async def scenario(peer: Peer) -> None:
        sending = asyncio.create_task(send(peer, request * 1000))
        await engine.arrival.wait()
        (connection,) = peer.connections
        while not connection.flow.read_paused:  # noqa: ASYNC110 - the bytes arrive in their own time
            await asyncio.sleep(0)
        assert connection.statistics().ahead_bytes < 200_000
        assert engine.reserved_bytes < 2000
        go.set()
        for _ in range(1000):
            assert data_of(await peer.response()) == list(range(100))
        await sending

    talk(scenario, engine)


def test_connection_with_many_pipelined_requests_shares_the_event_loop():
    engine = echo_engine()
    order: list[str] = []
    arrived = asyncio.Event()

    async def note(request: InferRequest) -> None:
        order.append(request.request_id)
        arrived.set()

    engine.models["echo"].before = note

    async def scenario(peer: Peer) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", peer.port)
        peer.writer.write(post(json_body(1, id="many")) * 1000)
        await arrived.wait()
        other_writer.write(post(json_body(2, id="one")))
        await other_reader.readuntil(b"}]}")
        answered_before = order.index("one")
        other_writer.close()
        for _ in range(1000):
            await peer.response()
        assert answered_before < 500

    talk(scenario, engine)


def test_unread_responses_stop_the_requests_behind_them():
    array = np.arange(LARGE, dtype=np.int32)
    body, header = binary_body(array)
    engine = echo_engine()
    count = 16

    async def scenario(peer: Peer) -> None:
        sending = asyncio.create_task(send(peer, post(body, header) * count))
        (connection,) = peer.connections
        while not connection.flow.write_paused:  # noqa: ASYNC110 - the bytes leave in their own time
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 2 * len(body)
        assert len(engine.requests) < count
        for _ in range(count):
            assert data_of(await peer.response()) == array.tolist()
        await sending

    talk(scenario, engine)


def test_response_counts_against_the_budget_until_its_client_has_read_it():
    array = np.arange(10 * LARGE, dtype=np.int32)
    body, header = binary_body(array)
    engine = echo_engine()

    async def scenario(peer: Peer) -> None:
        sending = asyncio.create_task(send(peer, post(body, header)))
        (connection,) = peer.connections
        while not connection.flow.write_paused:  # noqa: ASYNC110 - the bytes leave in their own time
            await asyncio.sleep(0)
        assert array.nbytes < engine.reserved_bytes < array.nbytes + 1000
        assert data_of(await peer.response()) == array.tolist()
        await sending
        while engine.reserved_bytes:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)

    talk(scenario, engine)


def test_reservation_of_an_unread_response_is_released_with_its_connection():
    body, header = binary_body(np.arange(10 * LARGE, dtype=np.int32))
    engine = echo_engine()

    async def scenario(peer: Peer) -> None:
        sending = asyncio.create_task(send(peer, post(body, header)))
        (connection,) = peer.connections
        while not connection.flow.write_paused:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        await sending
        peer.writer.transport.abort()
        while engine.reserved_bytes:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)

    talk(scenario, engine)


def test_response_above_the_budget_is_refused():
    body, header = binary_body(np.arange(10 * LARGE, dtype=np.int32))
    engine = echo_engine()

    async def fill_up(request: InferRequest) -> None:
        assert engine.budget.reserve(1)
        engine.limit_budget(1000)

    engine.models["echo"].before = fill_up

    async def scenario(peer: Peer) -> None:
        peer.writer.write(post(body, header))
        status, head, text = await peer.response()
        assert (status, b"retry-after" in head) == (503, True)
        assert b"no room for" in text
        engine.budget.release(1)
        engine.models["echo"].before = None
        peer.writer.write(post(json_body(1)))
        assert data_of(await peer.response()) == [1]

    talk(scenario, engine)


async def send(peer: Peer, wire: bytes) -> None:
    peer.writer.write(wire)
    await peer.writer.drain()


def test_stop_completes_requests_in_work_with_connection_close():
    async def main() -> None:
        model, go = waiting_model()
        engine = FakeEngine(model)
        async with asyncio.timeout(20), served(engine, Limits()) as peer:
            peer.writer.write(post(json_body(1, 2)))
            await engine.arrival.wait()
            stopping = asyncio.create_task(peer.listener.stop(10))
            await asyncio.sleep(0)
            go.set()
            response = await peer.response()
            assert data_of(response) == [1, 2]
            assert b"connection: close\r\n" in response[1]
            assert await peer.reader.read() == b""
            await stopping

    asyncio.run(main())


def large_views() -> list[memoryview]:
    return [found for found in gc.get_objects() if isinstance(found, memoryview) and found.nbytes > LARGE]


def test_memory_of_a_large_request_is_released_with_its_response():
    array = np.arange(LARGE, dtype=np.int32)
    body, header = binary_body(array)
    engine = echo_engine()

    async def scenario(peer: Peer) -> None:
        gc.collect()
        gc.disable()
        try:
            # Buffers of servers that other tests have left.
            before = large_views()
            for _ in range(3):
                peer.writer.write(post(body, header))
                await peer.response()
            engine.requests.clear()
            await asyncio.sleep(0)
            assert len(large_views()) <= len(before)
        finally:
            gc.enable()

    talk(scenario, engine)


class Recorder(asyncio.Transport):
    """Records the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written += b"<end>"

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.written += b"<closed>"


def connected(engine: FakeEngine) -> tuple[HttpConnection, Recorder]:
    port = HttpPort(no_app, Limits(), InferRoutes(HttpInfer(engine, Limits())), asyncio.get_running_loop())
    connection, recorder = HttpConnection(port), Recorder()
    connection.connection_made(recorder)
    return connection, recorder


def test_connection_lost_before_its_task_starts_holds_no_reservation():
    # A task that is cancelled before its first step runs no code of its coroutine, `finally` included.
    body = gzip.compress(json_body(1, 2))

    async def main() -> None:
        engine = echo_engine()
        connection, _ = connected(engine)
        arrive(connection, post(body, b"Content-Encoding: gzip"))
        assert engine.reserved_bytes == len(body)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.reserved_bytes == 0
        assert not engine.requests

    asyncio.run(main())


def test_connection_lost_before_its_response_is_encoded_holds_no_reservation():
    body, header = binary_body(np.arange(LARGE, dtype=np.int32))

    async def main() -> None:
        engine = echo_engine()
        connection, recorder = connected(engine)
        begun = asyncio.get_running_loop().create_future()

        def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            # Runs before the first step of the task.
            loop.call_soon(connection.connection_lost, None)
            loop.set_task_factory(None)
            begun.set_result(None)
            return asyncio.Task(work, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(note)
        arrive(connection, post(body, header))
        await begun
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.reserved_bytes == 0
        assert b"HTTP" not in recorder.written

    asyncio.run(main())


def test_pipelined_bytes_in_small_reads_pause_reading():
    async def main() -> None:
        model, go = waiting_model()
        connection, recorder = connected(FakeEngine(model))
        request = post(json_body(1, 2))
        arrive(connection, request)
        pieces = 0
        while not connection.flow.read_paused and pieces < 1000:
            arrive(connection, request)
            pieces += 1
        assert 16 * 1024 < pieces * len(request) <= 16 * 1024 + len(request)
        go.set()
        while recorder.written.count(b"HTTP/1.1 200 OK") <= pieces:  # noqa: ASYNC110 - each has its turn of the loop
            await asyncio.sleep(0)
        assert not connection.flow.read_paused
        connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(main(), 20))


async def conversation(wire: bytes, cuts: list[int]) -> bytes:
    """The bytes that the server writes to a client that sends `wire` in those pieces."""
    connection, recorder = connected(echo_engine())
    for begin, end in pairwise([0, *sorted(cuts), len(wire)]):
        arrive(connection, wire[begin:end])
        for _ in range(3):
            await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    return recorder.written


def chunked(body: bytes, step: int) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + step]), body[at : at + step]) for at in range(0, len(body), step))
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


LARGE_BINARY = binary_body(np.arange(30_000, dtype=np.int32))
MESSAGES = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=4).map(lambda values: post(json_body(*values))),
    st.builds(
        lambda values, step: chunked(json_body(*values), step), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 50)
    ),
    st.just(post(*binary_body(np.arange(5, dtype=np.int32)))),
    st.just(post(*LARGE_BINARY)),
    st.just(post(b"{nonsense")),
    st.just(b"\r\n\r\n"),
    st.just(post(json_body(1), b"Connection: close")),
    st.just(b"nonsense\r\n\r\n"),
    st.just(chunked(json_body(5), 10).replace(b"a\r\n", b"0xa\r\n", 1)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=20))
def test_reads_of_any_size_get_the_same_responses(messages: list[bytes], cuts: list[int]):
    wire = b"".join(messages)

    async def main() -> tuple[bytes, bytes]:
        return await conversation(wire, []), await conversation(
            wire, [split_numbers for split_numbers in cuts if split_numbers < len(wire)]
        )

    whole, pieces = asyncio.run(main())
    assert whole == pieces
    asked = b"".join(messages).count(b"POST ")
    assert whole.count(b"HTTP/1.1 ") <= asked + 1
