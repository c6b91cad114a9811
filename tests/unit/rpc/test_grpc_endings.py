"""Ends of calls on the native transport: deadlines, cancellation, lost clients, drains."""

import asyncio

import pytest

from stoker.server.core.limits import Limits
from stoker.server.rpc.method import Kind
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import connected, method, run, serving

PATH = "/a.B/Wait"


class Waiter:
    """A method that waits forever, and reports its start and its cancellation."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()

    async def unary(self, data: bytes, call) -> bytes:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            assert call.cancelled()
            self.cancelled.set()
            raise
        return data

    async def stream(self, call) -> None:
        await self.unary(b"", call)


@pytest.fixture(params=["inline", "task", "stream"])
def shape(request: pytest.FixtureRequest) -> str:
    return request.param


def waiting(waiter: Waiter, shape: str):
    if shape == "stream":
        return method(PATH, waiter.stream, Kind.BIDI)
    return method(PATH, waiter.unary, starts_inline=shape == "inline")


def test_deadline_ends_the_call_at_the_clients_time(shape: str):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (_, port), connected(port) as peer:
            response = await peer.call(path=PATH, grpc_timeout="50m")
            assert response.status == ("4", "Deadline Exceeded")
            await waiter.cancelled.wait()

    run(scenario)


def test_deadline_also_ends_a_call_whose_request_never_arrives():
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, "inline")) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH, grpc_timeout="50m")
            peer.flush()
            assert (await peer.ended(stream_id)).status[0] == "4"
            assert not waiter.begun.is_set()

    run(scenario)


def test_deadline_reaches_the_method():
    async def tell(data: bytes, call) -> bytes:
        return str(call.deadline_ns).encode()

    async def scenario() -> None:
        engine = FakeEngine(simple())
        async with serving(method(PATH, tell), engine=engine) as (_, port), connected(port) as peer:
            assert (await peer.call(path=PATH, grpc_timeout="3S")).messages == [str(engine.time_ns + 3_000_000_000).encode()]
            assert (await peer.call(path=PATH)).messages == [b"None"]

    run(scenario)


def test_call_cancelled_by_the_client_is_cancelled(shape: str):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.flush()
            await waiter.begun.wait()
            peer.connection.reset_stream(stream_id, 8)
            peer.flush()
            await waiter.cancelled.wait()

    run(scenario)


def test_call_cancelled_in_the_same_read_is_cancelled_too(shape: str):
    """Then the task that is to go on with a handler begun outside it has not had its first step."""

    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.connection.reset_stream(stream_id, 8)
            peer.flush()
            if shape == "inline":
                await waiter.cancelled.wait()
            # The others never began. What comes after is answered.
            waiter.go.set()
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.flush()
            assert (await peer.ended(stream_id)).status == ("0", "")

    run(scenario)


def test_lost_connection_cancels_its_calls(shape: str):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (_, port):
            async with connected(port) as peer:
                stream_id = peer.begin(PATH)
                peer.send(stream_id, b"x", end=True)
                peer.flush()
                await waiter.begun.wait()
            await waiter.cancelled.wait()

    run(scenario)


def test_handler_that_cancels_itself_gets_status_cancelled(shape: str):
    async def give_up(*arguments) -> bytes:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def scenario() -> None:
        kind = Kind.BIDI if shape == "stream" else Kind.UNARY
        async with (
            serving(method(PATH, give_up, kind, starts_inline=shape == "inline")) as (_, port),
            connected(port) as peer,
        ):
            assert (await peer.call(path=PATH)).status == ("1", "the call was cancelled by the server")

    run(scenario)


def test_stop_drains_calls_and_refuses_new_ones(shape: str):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (server, port), connected(port) as peer, connected(port) as idle:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.flush()
            await waiter.begun.wait()
            stopping = asyncio.create_task(server.stop(20))
            await peer.until(lambda: peer.goaway is not None and peer.goaway.last_stream_id == stream_id)
            assert peer.goaway is not None
            assert peer.goaway.error_code == 0
            await idle.until(lambda: idle.is_closed)
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection("127.0.0.1", port)
            waiter.go.set()
            assert (await peer.ended(stream_id)).status == ("0", "")
            await stopping
            await peer.until(lambda: peer.is_closed)

    run(scenario)


def test_call_beyond_the_grace_period_ends_with_a_status(shape: str):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, shape)) as (server, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.flush()
            await waiter.begun.wait()
            await server.stop(0)
            assert (await peer.ended(stream_id)).status == ("14", "the server is shutting down")
            await waiter.cancelled.wait()

    run(scenario)


def test_old_connections_are_drained_and_then_closed():
    async def scenario() -> None:
        waiter, loop = Waiter(), asyncio.get_running_loop()
        settings = GrpcSettings(max_connection_age_s=100, max_connection_age_grace_s=50)
        async with serving(waiting(waiter, "task"), settings=settings) as (server, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"x", end=True)
            peer.flush()
            await waiter.begun.wait()
            server.sweep(loop.time() + 99)
            assert peer.goaway is None
            server.sweep(loop.time() + 101)
            await peer.until(lambda: peer.goaway is not None)
            assert not peer.responses[stream_id].is_ended
            server.sweep(loop.time() + 151)
            assert (await peer.ended(stream_id)).status[0] == "14"

    run(scenario)


def test_calls_above_the_bound_are_refused_at_once():
    async def scenario() -> None:
        waiter = Waiter()
        limits = Limits(grpc_concurrent_rpcs=2)
        async with serving(waiting(waiter, "task"), limits=limits) as (_, port), connected(port) as one, connected(port) as two:
            held = []
            for peer in (one, two):
                stream_id = peer.begin(PATH)
                peer.send(stream_id, b"x", end=True)
                peer.flush()
                held.append((peer, stream_id))
                await waiter.begun.wait()
                waiter.begun.clear()
            assert (await one.call(path=PATH)).status == ("8", "the server has as many calls in work as it may: try again later")
            waiter.go.set()
            for peer, stream_id in held:
                assert (await peer.ended(stream_id)).status == ("0", "")
            assert (await one.call(path=PATH)).status == ("0", "")

    run(scenario)


def test_connections_above_the_bound_are_closed(caplog: pytest.LogCaptureFixture):
    async def scenario() -> None:
        waiter = Waiter()
        async with serving(waiting(waiter, "task"), limits=Limits(grpc_connections=1)) as (_, port), connected(port) as first:
            stream_id = first.begin(PATH)
            first.send(stream_id, b"", end=True)
            first.flush()
            await waiter.begun.wait()
            async with connected(port) as second:
                await second.until(lambda: second.is_closed)
            waiter.go.set()
            assert (await first.ended(stream_id)).status == ("0", "")

    run(scenario)
    assert "refusing gRPC connections: 1 are open" in caplog.text
