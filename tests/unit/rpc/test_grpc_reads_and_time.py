"""Timestamps of a connection with large messages: a client that sends is neither silent nor slow, however late its bytes are reported."""

import asyncio
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.progress import Progress
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.http2.zero_copy_reader import ZeroCopyReader
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.h2_raw import DATA, PING, cut
from tests.fakes.h2_reads import MemoryTransport, read
from tests.unit.rpc.test_grpc_large_messages import HELLO, Taker, framed, opening

LARGE = 600_000


class Loop:
    """The running loop, but for its time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self.now_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Rig:
    """A connection without a socket, on a clock of its own."""

    def __init__(self, settings: GrpcSettings | None = None) -> None:
        self.engine, self.transport, self.loop = FakeEngine(simple()), MemoryTransport(), Loop()
        self.front = ConnectionContext(Taker().methods(), self.engine, Limits(), settings or GrpcSettings(), self.loop)  # type: ignore[arg-type]
        self.connection = GrpcProtocol(self.front)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        read(self.connection, HELLO)

    def after(self, seconds: float, data: bytes = b"") -> None:
        """Advances the time, then reads `data`, if any, and sweeps."""
        self.loop.now_s += seconds
        if data:
            read(self.connection, data)
        self.connection.sweep(self.loop.now_s)

    def sent(self, kind: int) -> list[bytes]:
        return [each.payload for each in cut(bytes(self.transport.written)) if each.kind == kind]


def on_a_rig(scenario: Callable[[Rig], None], settings: GrpcSettings | None = None) -> None:
    async def main() -> None:
        rig = Rig(settings)
        scenario(rig)
        await asyncio.sleep(0)
        if not rig.transport.is_closed:
            rig.transport.is_closed = True
            rig.connection.connection_lost(None)
        assert rig.engine.reserved_bytes == 0

    asyncio.run(main())


def test_large_message_at_a_sufficient_rate_gets_its_response():
    def scenario(rig: Rig) -> None:
        rig.after(0, opening(1))
        came = 0
        frames = framed(bytes(LARGE), 1)
        for each in frames[:-1]:
            rig.after(4, each)
            came += len(each) - 9
            # What has come is counted to what all requests may hold, half a second later at the latest.
            assert rig.engine.reserved_bytes >= came - 5
        rig.after(4, frames[-1])
        assert sum(map(len, rig.sent(DATA))) == 5 + LARGE

    on_a_rig(scenario)


def test_large_message_that_stalls_times_out():
    def scenario(rig: Rig) -> None:
        rig.after(0, opening(1) + b"".join(framed(bytes(LARGE), 1)[:10]))
        (call,) = rig.connection.calls.receiving.values()
        rig.after(9)
        assert not call.is_over
        rig.after(2)
        assert call.is_over
        assert rig.engine.reserved_bytes == 0

    on_a_rig(scenario)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_any_received_byte_shows_that_the_client_is_alive(is_in_place: bool):
    def scenario(rig: Rig) -> None:
        first, *rest = framed(bytes(LARGE), 1)
        rig.after(0, opening(1) + first)
        reader = rig.transport.get_protocol()
        assert isinstance(reader, ZeroCopyReader)
        if not is_in_place:
            rig.transport.set_protocol(rig.connection)
        for each in rest[:10]:
            rig.after(9, each)
            rig.transport.set_protocol(reader if is_in_place else rig.connection)
        assert rig.sent(PING) == []
        # It is silent, is asked, and sends on.
        rig.connection.calls.receiving[1].progress = Progress(Limits(), rig.loop.now_s + 100)
        rig.after(61)
        assert len(rig.sent(PING)) == 1
        rig.after(1, rest[10])
        rig.after(5)
        assert not rig.transport.is_closed
        rig.after(56)
        assert len(rig.sent(PING)) == 2
        rig.after(5)
        assert rig.transport.is_closed

    on_a_rig(scenario, GrpcSettings(keepalive_time_s=60, keepalive_timeout_s=5))


def test_connection_lost_within_a_read_keeps_no_message():
    def scenario(rig: Rig) -> None:
        (message,) = framed(bytes(LARGE), 1, 1 << 20)
        read(rig.connection, opening(1) + message[:300_000])
        receive_buffer = rig.connection.receive_buffer()
        block = weakref.ref(receive_buffer.obj)
        assert len(receive_buffer) > 250_000
        del receive_buffer
        used = sys.getrefcount(block())
        rig.transport.is_closed = True
        rig.connection.connection_lost(None)
        left = sys.getrefcount(block())
        # That of all views together: the call's, the stream's, and the one that was asked for.
        assert left == used - 1

    on_a_rig(scenario)


def test_reads_do_not_fill_the_message_of_an_ended_call():
    def scenario(rig: Rig) -> None:
        (message,) = framed(bytes(LARGE), 1, 1 << 20)
        rig.after(0, opening(1) + message[:300_000])
        rig.after(11)
        assert rig.connection.receive_buffer().obj is rig.front.buffer.obj

    on_a_rig(scenario)
