"""The client of the benchmarks for large gRPC messages, against the server's own HTTP/2 front."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.large_calls import CallFailed, LargeCalls, large_closed_loop
from stoker.backends.api.errors import InvalidRequest
from stoker.server.core.limits import Limits
from stoker.server.rpc.http2.server import H2Server
from stoker.server.rpc.method import method_table
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import method

MIB = 1 << 20
PATH = "/a.B/Grow"


def against(work: Callable[[int], Any], handler: Any) -> Any:
    """Runs `work` with the port of a server in a thread of its own."""

    async def main() -> Any:
        server = H2Server(method_table([method(PATH, handler)]), FakeEngine(simple()), Limits(), "127.0.0.1", 0)
        port = await server.start()
        try:
            return await asyncio.to_thread(work, port)
        finally:
            await server.stop(0.1)

    return asyncio.run(main())


async def doubled(data: bytes, call: Any) -> bytes:
    assert bytes(data) == bytes(range(256)) * (len(data) // 256)
    return bytes(2 * len(data))


def test_calls_pass_on_the_whole_message_and_count_the_response():
    def work(port: int) -> list[int]:
        calls = LargeCalls(port, PATH, bytes(range(256)) * (9 * MIB // 256))
        try:
            return [calls.call() for _ in range(3)]
        finally:
            calls.close()

    assert against(work, doubled) == [18 * MIB + 5] * 3


def test_closed_loop_reports_calls_and_latencies():
    def work(port: int) -> Any:
        return large_closed_loop(port, PATH, bytes(range(256)), in_flight=2, warmup_s=0.0, seconds=0.1)

    loop = against(work, doubled)
    assert loop.calls_per_s > 0
    assert loop.mean_ms > 0


def test_failed_call_is_an_error_with_the_status():
    async def failing(data: bytes, call: Any) -> bytes:
        raise InvalidRequest("not this")

    def work(port: int) -> Any:
        return large_closed_loop(port, PATH, bytes(MIB), in_flight=1, warmup_s=0.0, seconds=0.1)

    with pytest.raises(CallFailed, match="status 3: not this"):
        against(work, failing)
