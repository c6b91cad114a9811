"""A closed gRPC connection is freed at once: reference counts do it, since the garbage collector runs seldom."""

import asyncio
import gc
from collections import Counter

import pytest
import uvloop

from stoker.server.net.http2.connection import ServerConnection
from stoker.server.rpc.http2.connection import GrpcProtocol
from tests.fakes.grpc_peer import connected, serving
from tests.unit.rpc.test_grpc_large_messages import Taker

CONNECTIONS = 3
#: Large enough for a zero-copy read.
MESSAGE = b"\0" + (300_000).to_bytes(4, "big") + bytes(300_000)
TURNS = 500


def connection_objects() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in (GrpcProtocol, ServerConnection))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("path", ["/a.B/Plain", "/a.B/Large", "/a.B/Stream"])
@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "truncated"])
def test_closed_connection_leaves_no_reference_cycle(new_loop, path: str, is_complete: bool):
    async def scenario() -> None:
        async with asyncio.timeout(20), serving(*Taker().methods().values()) as (_, port):
            for _ in range(CONNECTIONS):
                async with connected(port) as peer:
                    stream_id = peer.begin(path)
                    await peer.send_all(stream_id, MESSAGE if is_complete else MESSAGE[:-1])
                    await peer.ended(stream_id)
            for _ in range(TURNS):
                # The loop sees the last close in a later turn.
                if not connection_objects():
                    break
                await asyncio.sleep(0.01)
            assert not connection_objects()

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(scenario())
    finally:
        gc.enable()
