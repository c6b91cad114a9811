"""The connections that a port holds: which one is closed for a new one, and which requests a reserved slot serves."""

import asyncio
import gc
import logging
import weakref

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.connection_gate import IDLE, UNREGISTERED, ConnectionGate, Idleness, Slot
from stoker.server.net.http1.listener import HttpListener
from stoker.server.rpc.restricted import is_reserved_method
from stoker.server.web.plain import is_reserved_path
from tests.fakes.grpc_peer import connected, method, run, serving
from tests.unit.net.test_http_connection import Peer, talk

FROM = "192.0.2.1"


class Address(str):
    """An address that may be watched."""

    __slots__ = ("__weakref__",)


class Connection:
    def __init__(self, gate: ConnectionGate, idleness: Idleness | None, address: str | None = FROM) -> None:
        self.gate, self.idle, self.address = gate, idleness, address
        self.is_closed = False
        self.looks = 0
        self.slot = gate.enter(self, address, 0.0)

    def idleness(self) -> Idleness | None:
        self.looks += 1
        return self.idle

    def close_idle(self) -> None:
        self.is_closed = True
        # As a transport does it, later.
        self.gate.leave(self)

    def abort(self) -> None:
        self.close_idle()


def test_longest_idle_is_closed_keep_alive_first():
    gate = ConnectionGate(4, "HTTP", 4)
    unheard, late, early, busy = (Connection(gate, idle) for idle in ((UNREGISTERED, 1.0), (IDLE, 9.0), (IDLE, 5.0), None))
    order: list[Connection] = []
    for _ in range(4):
        new = Connection(gate, None)
        order += [each for each in (unheard, late, early, busy) if each.is_closed and each not in order]
    assert order == [early, late, unheard]
    assert new.slot is None


def test_address_at_its_limit_closes_its_own_longest_idle_connection():
    gate = ConnectionGate(10, "HTTP")
    assert gate.per_address == 5
    other = Connection(gate, (IDLE, 0.0), "192.0.2.2")
    mine = [Connection(gate, (IDLE, float(at))) for at in range(1, 6)]
    assert Connection(gate, None).slot is Slot.ORDINARY
    assert [each.is_closed for each in (other, *mine)] == [False, True, False, False, False, False]


def test_unix_socket_connections_have_no_address_limit():
    gate = ConnectionGate(10, "HTTP")
    assert all(Connection(gate, None, None).slot is Slot.ORDINARY for _ in range(10))
    assert Connection(gate, None, None).slot is None


def test_full_port_gives_reserved_slots_to_new_connections():
    gate = ConnectionGate(64, "HTTP", 64)
    assert gate.reserved == 2
    busy = [Connection(gate, None) for _ in range(62)]
    assert {each.slot for each in busy} == {Slot.ORDINARY}
    reserved = [Connection(gate, (IDLE, float(at))) for at in range(3)]
    assert [each.slot for each in reserved] == [Slot.RESERVED] * 3
    assert [each.is_closed for each in reserved] == [True, False, False]
    gate.leave(busy[0])
    assert Connection(gate, None).slot is Slot.ORDINARY


def test_busy_connections_hold_no_reserved_slot_against_later_ones():
    gate = ConnectionGate(64, "HTTP", 64)
    for _ in range(62):
        assert Connection(gate, None).slot is Slot.ORDINARY
    reserved = [Connection(gate, None) for _ in range(4)]
    assert [each.slot for each in reserved] == [Slot.RESERVED] * 4
    assert [each.is_closed for each in reserved] == [True, True, False, False]


def test_connection_of_an_address_at_its_limit_gets_a_reserved_slot():
    gate = ConnectionGate(64, "HTTP", 1)
    Connection(gate, None)
    assert Connection(gate, None).slot is Slot.RESERVED


def test_idle_connection_found_earlier_is_checked_again_before_it_is_closed():
    gate = ConnectionGate(3, "HTTP", 3)
    first, second, third = (Connection(gate, (IDLE, float(at))) for at in range(3))
    Connection(gate, None)
    assert first.is_closed
    second.idle = None
    Connection(gate, None)
    assert (second.is_closed, third.is_closed) == (False, True)


def test_flood_of_connections_does_not_search_for_each():
    gate = ConnectionGate(64, "HTTP", 64)
    idle = [Connection(gate, (IDLE, float(at))) for at in range(62)]
    for _ in range(62):
        Connection(gate, None)
    assert all(each.is_closed for each in idle)
    assert max(each.looks for each in idle) <= 2


def test_flood_on_a_busy_port_does_not_search_for_each():
    gate = ConnectionGate(8, "HTTP", 8)
    busy = [Connection(gate, None) for _ in range(8)]
    for _ in range(50):
        assert Connection(gate, None).slot is None
    assert {each.looks for each in busy} == {1}
    busy[3].idle = (IDLE, 0.0)
    assert gate.enter(Connection.__new__(Connection), FROM, 1.0) is Slot.ORDINARY
    assert busy[3].is_closed


def test_gate_keeps_nothing_of_closed_connections():
    gate = ConnectionGate(64, "HTTP", 2)
    made = [Connection(gate, None if at % 3 else (IDLE, float(at)), Address(f"192.0.2.{at % 5}")) for at in range(200)]
    kept = weakref.WeakSet[object]([*made, *(each.address for each in made)])
    for each in made:
        gate.leave(each)
    del made, each
    gc.collect()
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("path", "is_reserved"),
    [
        ("/v2/health/live", True),
        ("/v2/health/ready", True),
        ("/v2/models/m/versions/3/ready", True),
        ("/v1/models/m", True),
        ("/metrics", True),
        ("/monitoring/prometheus/metrics", True),
        ("/v2/models/m/stats", True),
        ("/v2/repository/models/m/unload", True),
        ("/v2/logging", True),
        ("/v2/models/m/trace/setting", True),
        ("/v2/models/m/infer", False),
        ("/v2/models/m/generate", False),
        ("/v1/models/m:predict", False),
        ("/v2", False),
        ("/docs", False),
    ],
)
def test_health_metrics_and_administration_are_served_in_reserved_slots(path: str, is_reserved: bool):
    assert is_reserved_path(path) is is_reserved


def test_health_and_administration_rpcs_are_served_in_reserved_slots():
    assert is_reserved_method("/grpc.health.v1.Health/Check")
    assert is_reserved_method("/inference.GRPCInferenceService/RepositoryModelUnload")
    assert not is_reserved_method("/inference.GRPCInferenceService/ModelInfer")
    assert not is_reserved_method("/a.B/Unknown")


def bound(listener: HttpListener, most: int, reserved: int) -> None:
    port = listener._port
    assert port is not None
    port.gate.most, port.gate.reserved, port.gate.per_address = most, reserved, most


async def another(peer: Peer) -> Peer:
    return Peer(peer.listener, *await asyncio.open_connection(*peer.writer.get_extra_info("peername")))


def test_full_http_port_closes_its_longest_idle_connection(caplog: pytest.LogCaptureFixture):
    async def scenario(peer: Peer) -> None:
        bound(peer.listener, 2, 0)
        second = await another(peer)
        for each in (peer, second):
            each.send(b"GET /a HTTP/1.1\r\n\r\n")
            await each.response()
        # The first was used after the second.
        peer.send(b"GET /a HTTP/1.1\r\n\r\n")
        await peer.response()
        third = await another(peer)
        third.send(b"GET /b HTTP/1.1\r\n\r\n")
        assert (await third.response())[0] == 200
        assert await second.is_closed()
        peer.send(b"GET /c HTTP/1.1\r\n\r\n")
        assert (await peer.response())[0] == 200
        for each in (second, third):
            each.writer.close()

    with caplog.at_level(logging.WARNING):
        talk(scenario)
    assert [record.message for record in caplog.records] == ["too many HTTP connections: the longest idle ones are closed"]


def test_reserved_slot_of_the_http_port_serves_only_health():
    go = asyncio.Event()

    async def wait(scope, receive, send) -> None:
        if scope["path"] == "/busy":
            await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario(peer: Peer) -> None:
        bound(peer.listener, 2, 1)
        peer.send(b"GET /busy HTTP/1.1\r\n\r\n")
        while not peer.listener.connections or not peer.listener.connections[0].is_in_work:  # noqa: ASYNC110 - it arrives in its own time
            await asyncio.sleep(0)
        probe = await another(peer)
        probe.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert (await probe.response())[0] == 200
        assert await probe.is_closed()
        client = await another(peer)
        client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        status, response = await client.response()
        assert (status, b"retry-after: 1" in response) == (503, True)
        assert b"serves health, metrics and administration only" in response
        go.set()
        assert (await peer.response())[0] == 200
        for each in (probe, client):
            each.writer.close()

    talk(scenario, wait)


async def echo(data: bytes, call) -> bytes:
    return data


def test_full_grpc_port_closes_its_longest_idle_connection():
    async def scenario() -> None:
        limits = Limits(grpc_connections=2, connections_per_address=2)
        async with (
            serving(method("/a.B/Echo", echo), limits=limits) as (server, port),
            connected(port) as first,
            connected(port) as second,
        ):
            assert (await second.call(path="/a.B/Echo")).status == ("0", "")
            # Since when a connection is idle is known to the nearest sweep.
            server.sweep(asyncio.get_running_loop().time())
            assert (await first.call(path="/a.B/Echo")).status == ("0", "")
            async with connected(port) as third:
                assert (await third.call(path="/a.B/Echo")).status == ("0", "")
                await second.until(lambda: second.is_closed)
                assert (await first.call(path="/a.B/Echo")).status == ("0", "")

    run(scenario)


def test_reserved_slot_of_the_grpc_port_serves_only_health():
    go = asyncio.Event()

    async def wait(data: bytes, call) -> bytes:
        await go.wait()
        return data

    async def scenario() -> None:
        health, infer = "/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ModelInfer"
        async with (
            serving(method(health, echo), method(infer, wait)) as (server, port),
            connected(port) as first,
        ):
            state = server._state
            assert state is not None
            state._gate.most, state._gate.reserved = 2, 1
            stream_id = first.begin(infer)
            first.send(stream_id, b"", end=True)
            first.flush()
            while not state.calls:  # noqa: ASYNC110 - it arrives in its own time
                await asyncio.sleep(0)
            async with connected(port) as probe:
                assert (await probe.call(path=health)).status == ("0", "")
                code, text = (await probe.call(path=infer)).status
                assert (code, "serves health, metrics and administration only" in text) == ("14", True)
            go.set()
            assert (await first.ended(stream_id)).status == ("0", "")

    run(scenario)
