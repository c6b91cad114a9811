"""Clients that are slow to begin, to continue or to respond: each has its timeout."""

import asyncio

import pytest

from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.grpc_peer import connected, method, run, serving
from tests.fakes.h2_raw import PREFACE, SETTINGS, frame

PATH = "/a.B/Method"


async def echo(data: bytes, call) -> bytes:
    return data


@pytest.mark.parametrize(
    "beginning",
    [b"", PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS)[:5], b"GET / HTTP/1.1\r\n\r\n"],
    ids=["nothing", "part of the preface", "preface alone", "part of SETTINGS", "HTTP/1.1"],
)
def test_handshake_times_out(beginning: bytes):
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(method(PATH, echo)) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(beginning)
            # Our own SETTINGS: the server has the connection.
            await reader.readexactly(9)
            server.sweep(loop.time() + 2.9)
            server.sweep(loop.time() + 3.1)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1 << 20)
            writer.close()

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\5a"])
def test_request_that_stalls_is_ended(body: bytes):
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(method(PATH, echo)) as (server, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            if body:
                peer.connection.send_data(stream_id, body)
            peer.flush()
            # A response to another call shows that the first is in progress.
            await peer.call(path=PATH)
            server.sweep(loop.time() + 9)
            await peer.call(path=PATH)
            assert not peer.responses[stream_id].is_ended
            server.sweep(loop.time() + 11)
            assert (await peer.ended(stream_id)).status == ("4", "the request came too slowly")
            assert (await peer.call(path=PATH)).status == ("0", "")

    run(scenario)


def test_header_block_that_stalls_ends_the_connection():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(method(PATH, echo)) as (server, port), connected(port) as peer:
            await peer.call(path=PATH)
            # HEADERS without END_HEADERS.
            peer.write_raw(frame(1, 0, peer.connection.get_next_available_stream_id(), b"\x83"))
            for _ in range(20):
                await asyncio.sleep(0)
            server.sweep(loop.time())
            server.sweep(loop.time() + 4)
            assert not peer.is_closed
            server.sweep(loop.time() + 6)
            await peer.until(lambda: peer.is_closed)

    run(scenario)


def test_silent_client_gets_a_ping_and_is_disconnected():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        settings = GrpcSettings(keepalive_time_s=60, keepalive_timeout_s=5)
        async with serving(method(PATH, echo), settings=settings) as (server, port), connected(port) as peer:
            await peer.call(path=PATH)
            server.sweep(loop.time() + 59)
            server.sweep(loop.time() + 61)
            await peer.until(lambda: peer.pings == 1)
            # It answered: all is well for another minute.
            await peer.call(path=PATH)
            server.sweep(loop.time() + 59)
            assert (await peer.call(path=PATH)).status == ("0", "")
            # One that has gone without a word answers no more.
            peer.fall_silent()
            server.sweep(loop.time() + 61)
            assert server.open_connections == 1
            server.sweep(loop.time() + 67)
            while server.open_connections:  # noqa: ASYNC110 - a matter of some turns
                await asyncio.sleep(0)

    run(scenario)
