"""Connections that get GOAWAY, for a flood or because they are idle: calls in progress end, none is lost."""

import asyncio

import pytest

from stoker.server.core.limits import Limits
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import GrpcPeer, connected, method, run, serving
from tests.fakes.h2_raw import PING, PRIORITY, frame

PATH = "/a.B/Wait"
FEW = Limits(grpc_control_burst=20, grpc_control_per_s=1)


class Gate:
    """A method that responds once it may, and reports its start."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_respond = asyncio.Event()

    async def respond(self, data: bytes, call) -> bytes:
        self.begun.set()
        await self.may_respond.wait()
        return data


async def begun_call(gate: Gate, peer: GrpcPeer) -> int:
    stream_id = peer.begin(PATH)
    peer.send(stream_id, b"x", end=True)
    peer.flush()
    await gate.begun.wait()
    return stream_id


def test_call_in_work_survives_a_flood_on_its_connection():
    async def scenario() -> None:
        gate, engine = Gate(), FakeEngine(simple())
        async with serving(method(PATH, gate.respond), engine=engine, limits=FEW) as (_, port), connected(port) as peer:
            stream_id = await begun_call(gate, peer)
            peer.write_raw(frame(PRIORITY, 0, 1, bytes(5)) * 35)
            await peer.until(lambda: peer.goaway is not None)
            assert peer.goaway is not None
            assert (peer.goaway.error_code, peer.goaway.additional_data) == (0, b"too many PRIORITY frames")
            assert peer.goaway.last_stream_id == stream_id
            late_id = peer.begin(PATH)
            peer.flush()
            assert (await peer.ended(late_id)).reset_code == 7
            gate.may_respond.set()
            assert (await peer.ended(stream_id)).status == ("0", "")
            await peer.until(lambda: peer.is_closed)
        assert engine.goaways == [GoawayReason.CONTROL_FLOOD]

    run(scenario)


def test_continued_flood_closes_the_connection_with_its_calls():
    async def scenario() -> None:
        gate, engine = Gate(), FakeEngine(simple())
        async with serving(method(PATH, gate.respond), engine=engine, limits=FEW) as (_, port), connected(port) as peer:
            await begun_call(gate, peer)
            peer.write_raw(frame(PRIORITY, 0, 1, bytes(5)) * 100)
            await peer.until(lambda: peer.is_closed)
            assert peer.goaway is not None
            assert peer.goaway.error_code == 11
        assert engine.goaways == [GoawayReason.CONTROL_FLOOD, GoawayReason.EXCESS]

    run(scenario)


def test_call_beyond_the_grace_period_after_a_flood_ends():
    async def scenario() -> None:
        gate, loop = Gate(), asyncio.get_running_loop()
        settings = GrpcSettings(max_connection_age_grace_s=50)
        async with serving(method(PATH, gate.respond), limits=FEW, settings=settings) as (server, port), connected(port) as peer:
            stream_id = await begun_call(gate, peer)
            peer.write_raw(frame(PRIORITY, 0, 1, bytes(5)) * 35)
            await peer.until(lambda: peer.goaway is not None)
            server.sweep(loop.time() + 40)
            assert not peer.responses[stream_id].is_ended
            server.sweep(loop.time() + 51)
            status = (await peer.ended(stream_id)).status
            assert status == ("14", "the server ends this connection: call again on another one")
            await peer.until(lambda: peer.is_closed)

    run(scenario)


def test_call_in_work_survives_too_many_pings():
    async def scenario() -> None:
        gate, engine = Gate(), FakeEngine(simple())
        async with serving(method(PATH, gate.respond), engine=engine) as (_, port), connected(port) as peer:
            stream_id = await begun_call(gate, peer)
            for number in range(5):
                peer.write_raw(frame(PING, 0, 0, bytes([number] * 8)))
            await peer.until(lambda: peer.goaway is not None)
            assert peer.goaway is not None
            assert (peer.goaway.error_code, peer.goaway.additional_data) == (11, b"too_many_pings")
            gate.may_respond.set()
            assert (await peer.ended(stream_id)).status == ("0", "")
            await peer.until(lambda: peer.is_closed)
        assert engine.goaways == [GoawayReason.PINGS]

    run(scenario)


def test_peer_that_breaks_a_rule_is_counted():
    async def scenario() -> None:
        engine = FakeEngine(simple())
        async with serving(engine=engine) as (_, port), connected(port) as peer:
            peer.write_raw(frame(PRIORITY, 0, 0, bytes(5)))
            await peer.until(lambda: peer.is_closed)
        assert engine.goaways == [GoawayReason.PROTOCOL]

    run(scenario)


def test_connection_without_a_call_is_drained():
    async def scenario() -> None:
        gate, engine, loop = Gate(), FakeEngine(simple()), asyncio.get_running_loop()
        gate.may_respond.set()
        settings = GrpcSettings(max_connection_idle_s=300)
        async with serving(method(PATH, gate.respond), engine=engine, settings=settings) as (server, port), connected(port) as peer:
            assert (await peer.call(path=PATH)).status == ("0", "")
            start_s = loop.time()
            server.sweep(start_s + 100)
            assert (await peer.call(path=PATH)).status == ("0", "")
            # A call came since: it counts from when that was seen.
            server.sweep(start_s + 390)
            server.sweep(start_s + 689)
            assert (await peer.call(path=PATH)).status == ("0", "")
            assert peer.goaway is None
            server.sweep(start_s + 700)
            server.sweep(start_s + 1000)
            await peer.until(lambda: peer.is_closed)
            assert peer.goaway is not None
            assert peer.goaway.error_code == 0
        assert engine.goaways == [GoawayReason.IDLE]

    run(scenario)


def test_connection_with_a_call_in_work_is_not_idle():
    async def scenario() -> None:
        gate, engine, loop = Gate(), FakeEngine(simple()), asyncio.get_running_loop()
        settings = GrpcSettings(max_connection_idle_s=300)
        async with serving(method(PATH, gate.respond), engine=engine, settings=settings) as (server, port), connected(port) as peer:
            stream_id = await begun_call(gate, peer)
            server.sweep(loop.time() + 5_000)
            server.sweep(loop.time() + 5_299)
            gate.may_respond.set()
            assert (await peer.ended(stream_id)).status == ("0", "")
            assert peer.goaway is None
        assert engine.goaways == [GoawayReason.SHUTDOWN]

    run(scenario)


@pytest.mark.parametrize("idle_s", [None, 300.0])
def test_connections_are_kept_if_no_idle_time_is_set(idle_s: float | None):
    async def scenario() -> None:
        gate, loop = Gate(), asyncio.get_running_loop()
        gate.may_respond.set()
        settings = GrpcSettings(max_connection_idle_s=idle_s)
        async with serving(method(PATH, gate.respond), settings=settings) as (server, port), connected(port) as peer:
            assert (await peer.call(path=PATH)).status == ("0", "")
            server.sweep(loop.time())
            server.sweep(loop.time() + 5_000)
            if idle_s is None:
                assert (await peer.call(path=PATH)).status == ("0", "")
            else:
                await peer.until(lambda: peer.is_closed)

    run(scenario)


def test_connection_reports_since_when_it_is_idle():
    async def scenario() -> None:
        gate = Gate()
        async with serving(method(PATH, gate.respond)) as (server, port), connected(port) as peer:
            (connection,) = server.connections
            first = connection.idleness()
            assert first is not None
            stream_id = await begun_call(gate, peer)
            assert connection.idleness() is None
            gate.may_respond.set()
            await peer.ended(stream_id)
            again = connection.idleness()
            assert again is not None
            assert again[1] >= first[1]

    run(scenario)
